# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The interface through which ``profile`` and ``tune`` model a family of kernels: :class:`Family`.

:class:`LaterNames` computes the names of a family (``Family.NAMES``) when they are read. The registry of losses, from
which they come, may not be importable when the parsers are made.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

from ..arguments import DTYPES

if TYPE_CHECKING:
    from nkilib.simulator import Profile
    from nkilib.simulator.profiling.profile import AskedTrips


@dataclass(frozen=True)
class LaterNames(Sequence[str]):
    """A sequence of names that is computed at every read, not when the object is made.

    Every command makes the parsers of all commands, even where the registry of losses cannot be imported, for instance
    in a mixture with another package named nkilib. The doctor has to run there too.

    Attributes:
        make: the function that returns the names.
    """

    make: Callable[[], tuple[str, ...]]

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self.make()[index]

    def __len__(self) -> int:
        return len(self.make())


@dataclass(frozen=True)
class Family(ABC):
    """A family of kernels, with the options of the command line that describe the launch to model.

    Attributes:
        NAMES: the names of the kernels in ``--family``.
        SIZES: the kernel's parameters that set the tiling; each name is mapped to the letter that the help shows for
            its value.
        OPTIONS: the names of the options that this family accepts and some other family does not.
        CHOOSER: the text after "chosen by" in the help, in most families the name of the function that chooses the
            default tiling.
        CONDITION: the text before the help of a size, such as ``"with --family distillation: "``.
        WHICH: the phrase for the options that select the family, such as ``"with --features"``, for error messages.
        options: the parsed options of the command line.
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
        """The name of the kernel that the options of the command line select."""

    @property
    def takes_options(self) -> bool:
        """Whether the option ``--arg`` can set options of the kernel."""
        return True

    @property
    def direction(self) -> str:
        """The direction of the launch: ``"forward"``, ``"backward"``, ``"mixture"`` or ``"forward_backward"``."""
        return self.options.direction or "forward"

    @property
    def _no_mixture(self) -> str | None:
        """The error message if the direction is ``mixture``, which most families lack; None if it is another one."""
        if self.direction == "mixture":
            return (
                "argument --direction: mixture is for distillation from hidden states only: "
                "add --family linear_distillation"
            )
        return None

    @property
    def refusal(self) -> str | None:
        """An error message if the family has no kernel for the options of the command line; None if it has one."""
        if self.direction == "forward_backward":
            return "argument --direction: forward_backward is for linear cross-entropy only: add --features"
        return self._no_mixture

    @abstractmethod
    def chosen(self, **arguments: Any) -> Any:
        """Return the default tiling of the library, a named tuple.

        Args:
            **arguments: the options of the kernel.
        """

    def cut(self, asked: dict[str, int], **arguments: Any) -> Any:
        """Return the default tiling with some sizes replaced.

        Args:
            asked: the sizes that the command line gives, by name.
            **arguments: the options of the kernel.
        """
        return self.chosen(**arguments)._replace(**asked)

    @abstractmethod
    def tilings(self) -> Iterable[Any]:
        """Return the tilings that ``tune`` compares; empty if the kernel has no sizes to choose."""

    @abstractmethod
    def profile(self, tiling: Any, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Return the profile of a launch.

        Args:
            tiling: the tiling of the launch.
            cores: the number of cores of the launch.
            trips: the iteration counts from ``--trips``, for loops whose bounds only the device knows.
            **arguments: the options of the kernel.
        """

    @property
    def dtype(self) -> str:
        """The name of the element type of the launch's large tensors."""
        return self.options.dtype or DTYPES[0]

    @property
    def target(self) -> str:
        """The name of the hardware generation whose times are modelled."""
        return self.options.target or "trn2"

    @property
    def is_backward(self) -> bool:
        """Whether the launch runs the backward kernel."""
        return self.direction == "backward"

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the launch's large tensors: (positions, classes), or (rows, columns)."""
        return self.options.positions, self.options.vocab
