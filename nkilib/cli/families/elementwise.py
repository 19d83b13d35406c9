# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The elementwise losses, modelled with tensors of one shape."""

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
    """The tiling of a launch, by the names of the kernel's arguments; None: the kernel's choice."""

    columns: int | None = None
    buffers: int | None = None


@dataclass(frozen=True)
class ElementwiseKernels(SizedKernels):
    """Elementwise losses of tensors of one type; the backward computes the gradient of the first tensor."""

    NAMES: ClassVar[Sequence[str]] = names_of_losses("ElementwiseLoss")
    SIZES: ClassVar[dict[str, str]] = {"columns": "C", "buffers": "B"}
    OPTIONS: ClassVar[tuple[str, ...]] = tuple(SIZES)
    CHOOSER: ClassVar[str] = "the kernel"
    CONDITION: ClassVar[str] = "with an elementwise or row-wise loss as --family: "
    WHICH: ClassVar[str] = "with an elementwise or row-wise loss as --family"

    def chosen(self, **arguments: Any) -> ElementwiseSizes:
        """Leave the tiling to the kernel."""
        return ElementwiseSizes()

    def tilings(self) -> set[ElementwiseSizes]:
        """Return the tilings to try."""
        sizes = product(self.options.columns or _COLUMNS, self.options.buffers or _BUFFERS)
        return {ElementwiseSizes(*size) for size in sizes}
