# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Blocks of rows: what each core works on, what it loads ahead, and the loop that runs them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.experimental.loss.linear.block_schedule import (
    Block,
    BlockSchedule,
    Span,
    Step,
    balanced_spans,
    plan_blocks,
    shares_of_cores,
)
from nkilib.experimental.loss.linear.logits import multiply
from nkilib.experimental.loss.linear.operands import Matrix
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import profile, spec

TILE = 128


@given(size=st.integers(1, 300_000), cores=st.sampled_from([1, 2]))
def test_cores_share_rows_in_whole_tiles(size: int, cores: int) -> None:
    shares = shares_of_cores(size, cores)
    assert sum(share.size for share in shares) == size
    assert all(share.first % TILE == 0 for share in shares if share.size)
    tiles = [-(-share.size // TILE) for share in shares]
    assert max(tiles) - min(tiles) <= 1


def test_a_core_may_have_no_row() -> None:
    shares = shares_of_cores(100, 2)
    assert [share.size for share in shares] == [100, 0]
    plans = [plan_blocks(shares, core, 768, 3) for core in range(2)]
    assert [plan.count for plan in plans] == [1, 0]
    assert {plan.iterations for plan in plans} == {0}
    assert plans[1].opening is None and plans[1].largest == 0


@given(first=st.integers(0, 50), size=st.integers(1, 20_000), most=st.integers(1, 12))
def test_balanced_pieces_differ_by_a_tile(first: int, size: int, most: int) -> None:
    pieces = balanced_spans(Span(first * TILE, size), most * TILE)
    assert len(pieces) == math.ceil(math.ceil(size / TILE) / most)
    edges = [piece.first for piece in pieces] + [first * TILE + size]
    assert [piece.size for piece in pieces] == np.diff(edges).tolist()
    assert edges[0] == first * TILE
    tiles = [-(-piece.size // TILE) for piece in pieces]
    assert max(tiles) <= most and max(tiles) - min(tiles) <= 1


def steps_of(plan: BlockSchedule, monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Return the steps that a plan runs, with the loop as one of Python."""

    def fori_loop(lower: int, upper: int, body, step: int) -> None:
        for value in range(lower, upper, step):
            body(value)

    steps: list[Step] = []
    with monkeypatch.context() as patch:
        patch.setattr(nl, "fori_loop", fori_loop)
        plan.run(steps.append)
    return steps


@given(
    size=st.integers(1, 40_000),
    cores=st.sampled_from([1, 2]),
    most=st.integers(1, 12),
    slots=st.integers(1, 3),
    more_bodies=st.integers(0, 12),
)
def test_steps_cover_a_share_and_load_ahead(size, cores, most, slots, more_bodies) -> None:
    shares = shares_of_cores(size, cores)
    most_bodies = 2 * slots + more_bodies
    plans = [plan_blocks(shares, core, most * TILE, most_bodies, slots) for core in range(cores)]
    assert len({(plan.iterations, plan.size) for plan in plans}) == 1
    for plan, share in zip(plans, shares, strict=True):
        steps = steps_of(plan, pytest.MonkeyPatch())
        assert len(steps) == plan.count
        assert plan.bodies <= most_bodies + (len({share.size for share in shares}) > 1)
        edges = [step.block.first for step in steps] + [share.first + share.size]
        if share.size == 0:
            continue
        assert [step.block.size for step in steps] == np.diff(edges).tolist()
        assert edges[0] == share.first
        assert max(step.block.size for step in steps) == plan.largest <= most * TILE
        check_loads(plan, steps)
        in_turn = [step.number % slots for step in steps]
        assert in_turn == [number % slots for number in range(len(steps))]


def check_loads(plan: BlockSchedule, steps: list[Step]) -> None:
    """Each step finds loaded what was to be loaded before it, which is nothing that is not in its block."""
    ahead = plan.opening
    for step in steps:
        assert step.loaded == (0 if ahead is None else ahead.size) <= step.block.size
        assert ahead is None or ahead.first == step.block.first
        ahead = step.following
    assert ahead is None


def test_half_a_block_is_loaded_before_an_edge() -> None:
    for size in range(40 * TILE, 80 * TILE, TILE):
        plan = plan_blocks([Span(0, size)], 0, 6 * TILE, 3)
        assert plan.iterations > 0
        assert plan.opening is not None and plan.opening.size >= plan.size // 2


def copy_kernel(most: int, most_bodies: int, slots: int):
    """Copies the rows of a matrix and of a vector in blocks, each loaded while the one before is stored."""

    @nki.jit
    def copied(matrix, transposed, vector):
        rows, columns = matrix.shape
        results = [nl.ndarray(tensor.shape, tensor.dtype, nl.shared_hbm) for tensor in (matrix, transposed, vector)]
        shares = shares_of_cores(rows, nl.num_programs())
        plan = plan_blocks(shares, nl.program_id(0), most, most_bodies, slots)
        tiles = [
            [nl.ndarray((shape), matrix.dtype, nl.sbuf) for shape in ((TILE, columns), (columns, TILE), (1, TILE))]
            for _ in range(slots * plan.size // TILE)
        ]

        def moved(block: Block, number: int, start: int, stop: int, is_load: bool) -> None:
            for first in range(start, stop, TILE):
                part = block.part(first, min(TILE, stop - first))
                buffers = tiles[number % slots * (plan.size // TILE) + first // TILE]
                for index, (source, result) in enumerate(zip((matrix, transposed, vector), results, strict=True)):
                    dimension = 1 if index == 1 else 0
                    hbm = part.of(source if is_load else result, dimension)
                    hbm = hbm if index < 2 else hbm.expand_dim(0)
                    sbuf = buffers[index][0 : hbm.shape[0], 0 : hbm.shape[1]]
                    nisa.dma_copy(dst=sbuf if is_load else hbm, src=hbm if is_load else sbuf)

        def body(step: Step) -> None:
            moved(step.block, step.number, step.loaded, step.block.size, is_load=True)
            if step.following is not None and slots > 1:
                moved(step.following, step.number + 1, 0, step.following.size, is_load=True)
            moved(step.block, step.number, 0, step.block.size, is_load=False)
            if step.following is not None and slots == 1:
                moved(step.following, step.number + 1, 0, step.following.size, is_load=True)

        if plan.opening is not None:
            moved(plan.opening, 0, 0, plan.opening.size, is_load=True)
        plan.run(body)
        return tuple(results)

    return copied


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    ("rows", "most", "most_bodies", "slots"),
    [(3000, 256, 3, 1), (3000, 256, 5, 2), (2900, 128, 4, 2), (100, 256, 3, 1), (2049, 256, 2, 1)],
)
def test_a_loop_moves_each_row_once(cores: int, rows: int, most: int, most_bodies: int, slots: int) -> None:
    matrix = np.random.default_rng(0).standard_normal((rows, 32)).astype(np.float32)
    inputs = matrix, np.ascontiguousarray(matrix.T), matrix[:, 0].copy()
    for result, expected in zip(copy_kernel(most, most_bodies, slots)[cores](*inputs), inputs, strict=True):
        assert np.array_equal(result, expected)


def test_the_program_does_not_grow_with_the_rows() -> None:
    def instructions(rows: int) -> int:
        return plan_blocks(shares_of_cores(rows, 2), 0, 768, 3).bodies

    assert {instructions(rows) for rows in range(20_000, 300_000, 1111)} <= {2, 3, 4}


@nki.jit
def largest_of_products(matrix, most_bodies):
    """Some use of each block's product with the first rows, by Tensor, while the next block is loaded."""
    rows, columns = matrix.shape
    result = nl.ndarray((TILE, 1), nl.float32, nl.shared_hbm)
    plan = plan_blocks([Span(0, rows)], 0, 512, most_bodies, slots=2)
    first_sbuf = nl.ndarray((TILE, columns // TILE, TILE), matrix.dtype, nl.sbuf)
    blocks_sbuf = [nl.ndarray((TILE, columns // TILE, 512), matrix.dtype, nl.sbuf) for _ in range(2)]
    product_psum = [nl.ndarray((TILE, 512), nl.float32, nl.psum) for _ in range(2)]
    largest_sbuf = nl.ndarray((TILE, 1), nl.float32, nl.sbuf)
    Matrix(matrix).rows_of(0, TILE).load_transposed(first_sbuf)

    def load(block: Block, number: int, start: int) -> None:
        if start < block.size:
            rest = block.part(start, block.size - start)
            Matrix(rest.of(matrix)).load_transposed(blocks_sbuf[number % 2][:, :, start : block.size])

    def body(step: Step) -> None:
        load(step.block, step.number, step.loaded)
        if step.following is not None:
            load(step.following, step.number + 1, 0)
        for repetition in range(20):  # as for many positions
            product = product_psum[repetition % 2][:, 0 : step.block.size]
            multiply(product, first_sbuf, blocks_sbuf[step.number % 2][:, :, 0 : step.block.size], columns)
            nisa.tensor_reduce(dst=largest_sbuf, op=nl.maximum, data=product, axis=1)
        nisa.dma_copy(dst=result, src=largest_sbuf)

    if plan.opening is not None:
        load(plan.opening, 0, 0)
    plan.run(body)
    return result


def test_what_a_loop_costs() -> None:
    """25 us for the loop, and 3 to 5 us for each edge, as the docstring of the module says."""
    matrix = spec((60 * 512, 1024), nl.bfloat16)
    most_bodies = 9
    looped, unrolled = (profile(largest_of_products, matrix, bodies).time_us for bodies in (most_bodies, 60))
    iterations = plan_blocks([Span(0, 60 * 512)], 0, 512, most_bodies, 2).iterations
    assert iterations == 14
    assert 3 < (looped - unrolled - 25) / iterations < 5
