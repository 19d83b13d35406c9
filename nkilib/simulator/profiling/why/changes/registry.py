# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kinds of changes by name: :data:`CHANGES` lists the functions that yield the candidates of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..study import Candidate, Study
from . import buffers, cores, engines, fusions, orders, sizes, transfers

CHANGES: tuple[Callable[[Study], Iterable[Candidate]], ...] = (
    cores.divided,
    fusions.fused,
    engines.moved,
    buffers.more,
    orders.reordered,
    transfers.changed,
    sizes.larger,
)
