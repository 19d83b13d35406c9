# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What commands ask of a family of kernels."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ..launch_arguments import DTYPES

if TYPE_CHECKING:
    from nkilib.simulator import Profile
    from nkilib.simulator.profiling.trips import AskedTrips


@dataclass(frozen=True)
class Family(ABC):
    """Kernels of one kind, for the launch of a command line.

    Attributes:
        NAMES: what ``--family`` calls them.
        SIZES: how a launch is cut up: parameters of the kernel, and the letter of each in the help.
        OPTIONS: the names of all options that are the family's own.
        CHOOSER: the function that chooses the sizes.
        CONDITION: what the help says before a size.
        WHICH: what tells the family, where an option of it comes without that.
        options: of the command line.
    """

    NAMES: ClassVar[Sequence[str]]
    SIZES: ClassVar[dict[str, str]]
    OPTIONS: ClassVar[tuple[str, ...]]
    CHOOSER: ClassVar[str]
    CONDITION: ClassVar[str]
    WHICH: ClassVar[str]

    options: argparse.Namespace

    @property
    @abstractmethod
    def kernel(self) -> str:
        """Its name."""

    @property
    def takes_options(self) -> bool:
        """Whether ``--arg`` gives some."""
        return True

    @property
    def refusal(self) -> str | None:
        """Why such a launch is none."""
        if self.direction == "forward_backward":
            return "argument --direction: forward_backward is of linear cross-entropy: add --features"
        return self._no_mixture

    @abstractmethod
    def chosen(self, **arguments: Any) -> Any:
        """The tiling that the chooser says, a named tuple; ``arguments`` are options of the kernel."""

    @abstractmethod
    def tilings(self) -> Iterable[Any]:
        """To try; none if there is nothing to choose."""

    @abstractmethod
    def profile(self, tiling: Any, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Of a launch; ``arguments`` are options of the kernel."""

    @property
    def _no_mixture(self) -> str | None:
        """Why a launch in that direction is none."""
        if self.direction == "mixture":
            return (
                "argument --direction: mixture is of distillation from hidden states: add --family linear_distillation"
            )
        return None

    @property
    def direction(self) -> str:
        """Of the launch."""
        return self.options.direction or "forward"

    @property
    def dtype(self) -> str:
        """Of the large tensors."""
        return self.options.dtype or DTYPES[0]

    @property
    def target(self) -> str:
        """The generation."""
        return self.options.target or "trn2"

    @property
    def is_backward(self) -> bool:
        """The direction."""
        return self.direction == "backward"

    @property
    def shape(self) -> tuple[int, int]:
        """Of the large tensors."""
        return self.options.positions, self.options.vocab
