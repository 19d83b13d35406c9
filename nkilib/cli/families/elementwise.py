# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses of elements, of tensors of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

from .loss import SizedKernels
from .names import names_of_losses

_COLUMNS = (512, 1024, 2048, 4096, 8192)
_BUFFERS = (2, 3)


class ElementwiseSizes(NamedTuple):
    """How a launch is cut up; None: as the kernel chooses."""

    columns: int | None = None
    buffers: int | None = None


@dataclass(frozen=True)
class ElementwiseKernels(SizedKernels):
    """Of tensors of one type, and in the backward the gradient of the first one."""

    NAMES: ClassVar[Sequence[str]] = names_of_losses("ElementwiseLoss")
    SIZES: ClassVar[dict[str, str]] = {"columns": "C", "buffers": "B"}
    OPTIONS: ClassVar[tuple[str, ...]] = tuple(SIZES)
    CHOOSER: ClassVar[str] = "the kernel"
    CONDITION: ClassVar[str] = "with --family of a loss of elements or rows: "
    WHICH: ClassVar[str] = "with --family of a loss of elements or rows"

    def chosen(self, **arguments: Any) -> ElementwiseSizes:
        """Left to the kernel."""
        return ElementwiseSizes()

    def tilings(self) -> set[ElementwiseSizes]:
        """To try."""
        sizes = product(self.options.columns or _COLUMNS, self.options.buffers or _BUFFERS)
        return {ElementwiseSizes(*each) for each in sizes}
