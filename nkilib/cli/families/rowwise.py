# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses of rows: triplets, cosines, and several labels of a row."""

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
    """How a launch is cut up; None: as the kernel chooses."""

    columns: int | None = None
    each: int | None = None
    buffers: int | None = None


@dataclass(frozen=True)
class RowwiseKernels(SizedKernels):
    """Of rows of one type, and in the backward the gradients that are computed unless asked otherwise."""

    NAMES: ClassVar[Sequence[str]] = names_of_losses("RowwiseLoss")
    SIZES: ClassVar[dict[str, str]] = {"columns": "C", "each": "R", "buffers": "B"}
    OPTIONS: ClassVar[tuple[str, ...]] = tuple(SIZES)
    CHOOSER: ClassVar[str] = "the kernel"
    CONDITION: ClassVar[str] = "with --family of a loss of rows: "
    WHICH: ClassVar[str] = "with --family of a loss of rows"

    def chosen(self, **arguments: Any) -> RowwiseSizes:
        """Left to the kernel."""
        return RowwiseSizes()

    def tilings(self) -> set[RowwiseSizes]:
        """To try: chunks of a row, or as many rows at a time as asked."""
        columns = self.options.columns or [each for each in _COLUMNS if each <= self.options.vocab]
        sizes = product(columns or [None], self.options.each or [None], self.options.buffers or _BUFFERS)
        return {RowwiseSizes(*each) for each in sizes}
