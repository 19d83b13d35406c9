# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The interface of a family of kernels to the commands."""

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
    """A family of kernels, for the launch of a command line.

    Attributes:
        NAMES: the names of the kernels in ``--family``.
        SIZES: the parameters of the kernel that set the tiling, and the letter of each in the help.
        OPTIONS: the names of all options that belong to this family only.
        CHOOSER: the function that chooses the sizes.
        CONDITION: the text before a size in the help.
        WHICH: the options that select the family, for the error about an option of this family without them.
        options: the options of the command line.
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
        """The name of the kernel."""

    @property
    def takes_options(self) -> bool:
        """Whether the kernel has options for ``--arg``."""
        return True

    @property
    def refusal(self) -> str | None:
        """The reason why there is no such launch; None if there is one."""
        if self.direction == "forward_backward":
            return "argument --direction: forward_backward is for linear cross-entropy only: add --features"
        return self._no_mixture

    @abstractmethod
    def chosen(self, **arguments: Any) -> Any:
        """Return the default tiling, a named tuple; ``arguments`` are options of the kernel."""

    @abstractmethod
    def tilings(self) -> Iterable[Any]:
        """Return the tilings to try; none if there is nothing to choose."""

    @abstractmethod
    def profile(self, tiling: Any, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Profile a launch; ``arguments`` are options of the kernel."""

    @property
    def _no_mixture(self) -> str | None:
        """The reason why there is no launch in the direction ``mixture``; None for another direction."""
        if self.direction == "mixture":
            return (
                "argument --direction: mixture is for distillation from hidden states only: "
                "add --family linear_distillation"
            )
        return None

    @property
    def direction(self) -> str:
        """The direction of the launch."""
        return self.options.direction or "forward"

    @property
    def dtype(self) -> str:
        """The type of the large tensors."""
        return self.options.dtype or DTYPES[0]

    @property
    def target(self) -> str:
        """The hardware generation."""
        return self.options.target or "trn2"

    @property
    def is_backward(self) -> bool:
        """Whether the direction is backward."""
        return self.direction == "backward"

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the large tensors."""
        return self.options.positions, self.options.vocab
