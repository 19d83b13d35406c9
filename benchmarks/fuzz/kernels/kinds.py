# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kinds of instructions of a random kernel, and their frequencies."""

from __future__ import annotations

from typing import Final

from benchmarks.fuzz.kernels import computing, meeting, moving, situations
from benchmarks.fuzz.kernels.drawing import SIZES, Draws, draw
from benchmarks.fuzz.kernels.program import Program

KINDS: Final[tuple[tuple[Draws, float], ...]] = (
    (moving.load_new, 2.0),
    (moving.load_into, 1.5),
    (moving.store, 3.0),
    (moving.update_in_place, 0.8),
    (moving.copy_hbm, 0.5),
    (moving.new_hbm, 0.8),
    (moving.transpose, 0.5),
    (moving.gather, 0.6),
    (moving.dynamic, 0.1),
    (computing.elementwise, 8.0),
    (computing.copies, 3.0),
    (computing.reducing, 3.0),
    (computing.select, 0.8),
    (computing.searching, 0.5),
    (computing.products, 1.2),
    (meeting.barrier, 0.4),
    (meeting.swap, 0.4),
    (situations.overwritten_after_a_load, 1.0),
    (situations.stored_beside, 1.2),
    (situations.stored_late, 1.0),
    (situations.partly_overwritten, 1.0),
    (situations.changed_operands, 0.8),
    (situations.read_after_a_meeting, 1.5),
    (situations.chains, 0.8),
)


def random_kernel(seed: int, sizes: str = "", cores: int = 0) -> Program:
    """The kernel of a seed; of the seed's own sizes and cores if they are not given."""
    names = list(SIZES)
    sizes = sizes or names[seed % len(names)]
    return draw(seed, sizes, cores or (2 if seed % 3 == 0 else 1), KINDS, moving.results)
