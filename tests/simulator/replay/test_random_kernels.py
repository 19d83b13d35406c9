# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Replays of random kernels are bitwise identical; `python -m benchmarks.fuzz.kernels` draws more of them."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from benchmarks.fuzz.kernels.checking import checked, complaint, differs, shrunk
from benchmarks.fuzz.kernels.drawing import SIZES
from benchmarks.fuzz.kernels.program import Argument, Program
from benchmarks.fuzz.kernels.situations import random_kernel

SEEDS: Final = st.integers(0, 2**32 - 1)
# Kernels of each size; a failing one is shrunk line by line, which hypothesis cannot do.
COUNTS: Final = {"tiny": 60, "small": 60, "middle": 25, "large": 8}
PHASES: Final = (Phase.explicit, Phase.reuse, Phase.generate)


def check(program: Program) -> bool:
    """Whether it was planned."""
    report = checked(program)
    assert not report.differences, complaint(program, report)
    return not report.refusal


@pytest.mark.parametrize("sizes", COUNTS)
def test_replayed_kernels_leave_bitwise_identical_results(sizes: str) -> None:
    planned = []

    @settings(max_examples=COUNTS[sizes], phases=PHASES)
    @given(SEEDS)
    def any_kernel(seed: int) -> None:
        planned.append(check(random_kernel(seed, sizes)))

    any_kernel()
    assert sum(planned) >= 0.8 * len(planned)


def test_every_size_is_tested() -> None:
    assert set(COUNTS) == set(SIZES)


def test_a_kernel_repeats() -> None:
    one, other = random_kernel(17), random_kernel(17)
    assert str(one) == str(other)
    assert [array.tobytes() for array in one.arrays()] == [array.tobytes() for array in other.arrays()]
    assert random_kernel(18).source != one.source


DOUBLED: Final = Program(
    3,
    "tiny",
    1,
    (Argument("a0", (4, 8), "float32"), Argument("a1", (4, 8), "float32")),
    (
        "t1 = nl.ndarray((4, 8), nl.float32, nl.sbuf)",
        "t2 = nl.ndarray((4, 8), nl.float32, nl.sbuf)",
        "nisa.dma_copy(t1, a0)",
        "nisa.dma_copy(t2, a1)",
        "nisa.tensor_tensor(t1, t1, t2, nl.add)",
        "o3 = nl.ndarray((4, 8), nl.float32, nl.shared_hbm)",
        "nisa.dma_copy(o3, t1)",
    ),
    ("o3",),
)


def test_a_kernel_without_lines_keeps_the_results_that_are_still_made() -> None:
    assert DOUBLED.with_lines(DOUBLED.lines[:5]).results == ()
    assert DOUBLED.with_lines(DOUBLED.lines[5:6]).results == ("o3",)


def test_what_does_not_matter_is_left_out() -> None:
    small = shrunk(DOUBLED, lambda program: "nisa.dma_copy(t2, a1)" in program.lines)
    assert small.lines == ("nisa.dma_copy(t2, a1)",)


def test_wrong_steps_are_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay in which the second of two operands is read as the first."""
    from nkilib.simulator.replay.builder import RowwiseBuilder

    right = RowwiseBuilder._float32

    def wrong(self, steps, role, ref, rows, landing):  # type: ignore[no-untyped-def]
        return right(self, steps, role, self.first if role == "source 1" else ref, rows, landing)

    def remembering(self, steps, work, rows):  # type: ignore[no-untyped-def]
        self.first = work.tiles[0]
        return elementwise(self, steps, work, rows)

    elementwise = RowwiseBuilder.elementwise
    assert not differs(DOUBLED)
    monkeypatch.setattr(RowwiseBuilder, "elementwise", remembering)
    monkeypatch.setattr(RowwiseBuilder, "_float32", wrong)
    report = checked(DOUBLED)
    assert any(line.startswith("the recorded data: result 0 differs at 32 of 32") for line in report.differences)
    assert len(shrunk(DOUBLED, differs).lines) == 7
    assert "seed 3" in complaint(DOUBLED, report) and "shrunk to 7 lines" in complaint(DOUBLED, report)


def test_cores_may_synchronise_where_rows_are_worked_on_in_blocks() -> None:
    lines = ("nisa.core_barrier(a0, (0, 1))", "h0 = a0[nl.program_id(0) * 4 : nl.program_id(0) * 4 + 4]")
    body = ("t1 = nl.ndarray((4, 8), nl.float32, nl.sbuf)", "nisa.dma_copy(t1, h0)", "nisa.dma_copy(h0, t1)")
    program = Program(5, "tiny", 2, (Argument("a0", (8, 8), "float32"),), lines + body)
    assert check(program)


def test_a_product_with_a_vector_does_not_change_with_the_products_beside_it() -> None:
    """Between two of them the operand's tile changes elsewhere, so that they are made one by one as always."""
    lines = (
        "t1 = nl.ndarray((55, 3), nl.float32, nl.sbuf)",
        "nisa.dma_copy(t1, a0)",
        "t2 = nl.ndarray((55, 3), nl.float32, nl.sbuf)",
        "nisa.dma_copy(t2, a0)",
        "p3 = nl.ndarray((2, 512), nl.float32, nl.psum)",
        "nisa.nc_matmul(p3[0:2, 0:1], t1[0:55, 0:2], t2[0:55, 1:2], accumulate=False)",
        "nisa.tensor_scalar(t2[0:55, 0:1], t2[0:55, 0:1], nl.multiply, 0.5)",
        "nisa.nc_matmul(p3[0:2, 0:1], t1[0:55, 0:2], t2[0:55, 2:3], accumulate=True)",
        "t5 = nl.ndarray((2, 1), nl.float32, nl.sbuf)",
        "nisa.tensor_copy(t5, p3[0:2, 0:1])",
        "o6 = nl.ndarray((2, 1), nl.float32, nl.shared_hbm)",
        "nisa.dma_copy(o6, t5)",
    )
    assert check(Program(5000688, "tiny", 1, (Argument("a0", (55, 3), "float32"),), lines, ("o6",)))
