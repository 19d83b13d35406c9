# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The row-wise losses: triplets, cosines, and several labels per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

from .loss import SizedKernels
from .names import names_of_losses

_COLUMNS = (512, 1024, 2048, 4096, 8192)
_BUFFERS = (2, 3)


class RowwiseSizes(NamedTuple):
    """The tiling of a launch, by the names of the kernel's arguments; None: the kernel's choice."""

    columns: int | None = None
    each: int | None = None
    buffers: int | None = None


@dataclass(frozen=True)
class RowwiseKernels(SizedKernels):
    """Row-wise losses whose rows have one type; the backward computes the gradients that are computed by default."""

    NAMES: ClassVar[Sequence[str]] = names_of_losses("RowwiseLoss")
    SIZES: ClassVar[dict[str, str]] = {"columns": "C", "each": "R", "buffers": "B"}
    OPTIONS: ClassVar[tuple[str, ...]] = tuple(SIZES)
    CHOOSER: ClassVar[str] = "the kernel"
    CONDITION: ClassVar[str] = "with a row-wise loss as --family: "
    WHICH: ClassVar[str] = "with a row-wise loss as --family"

    def chosen(self, **arguments: Any) -> RowwiseSizes:
        """Leave the tiling to the kernel."""
        return RowwiseSizes()

    def tilings(self) -> set[RowwiseSizes]:
        """Return the tilings to try: chunks of a row, or as many rows at a time as requested."""
        columns = self.options.columns or [size for size in _COLUMNS if size <= self.options.vocab]
        sizes = product(columns or [None], self.options.each or [None], self.options.buffers or _BUFFERS)
        return {RowwiseSizes(*size) for size in sizes}
