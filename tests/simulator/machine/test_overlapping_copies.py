# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Copies over their own source, and destinations that hold an element twice: what is reported, and what is not."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import nkilib.simulator
from nkilib.experimental.loss import cross_entropy_forward
from nkilib.nki import nisa, nki, nl, replayable
from nkilib.simulator import NkiValidationError, OverlappingCopyError, SimulatorWarning, per_rank, ranks
from nkilib.simulator.hardware.options import forget_warnings
from nkilib.simulator.terms.layout import has_repeats

from ..frame import refused, run, without_place
from ..kernels import hbm, load, store, tile

ncc = nki.collectives
Body = Callable[[Any], Any]


def on_chip(body: Body, dtype: Any = nl.float32) -> Body:
    """A kernel that calls `body` with a tile of 32 x 64 in place of its argument, and returns the tile."""

    def kernel(x: Any) -> Any:
        made = tile(32, 64, dtype=dtype, value=1)
        body(made)
        return store(made)

    return kernel


def swap(instruction: Any, src: Any, dst: Any, **parameters: Any) -> None:
    other = 1 - nl.program_id(0)
    instruction(src=src, dst=dst, send_to_rank=other, recv_from_rank=other, **parameters)


def vector_transpose(dst: Any, data: Any) -> None:
    nisa.nc_transpose(dst, data, engine=nisa.engine.vector)


def reduce_all(srcs: list[Any], dsts: list[Any]) -> None:
    ncc.all_reduce(srcs, dsts, ncc.ReplicaGroup([[0]]), nl.add)


def add(dst: Any, *srcs: Any) -> None:
    nisa.dma_compute(dst, srcs, nl.add)


def matmul(data: Any, pattern: list[list[int]]) -> None:
    """Run a matmul whose result has a pattern, twice into one view."""
    sums = tile(4, 9 if pattern[0][0] == 9 else 8, buffer=nl.psum).ap(pattern)
    columns = math.prod(count for _, count in pattern[1:])
    for accumulate in (False, True):
        nisa.nc_matmul(sums, data[:, 0:4], data[:, 0:columns], accumulate=accumulate)


# For each finding a corrected twin.
OVERLAPS: dict[str, tuple[Body, Body]] = {
    "rows in HBM": (lambda x: nisa.dma_copy(x[1:4], x[0:3]), lambda x: nisa.dma_copy(x[3:6], x[0:3])),
    "rows that are turned round": (
        lambda x: nisa.dma_copy(x[0:2], x.ap([[-64, 2], [1, 64]], offset=64)),
        lambda x: nisa.dma_copy(x[2:4], x.ap([[-64, 2], [1, 64]], offset=64)),
    ),
    "another type": (
        lambda x: nisa.dma_copy(x.view(nl.bfloat16)[:, 0:64], x),
        lambda x: nisa.dma_copy(x.view(nl.int32), x),  # each element at its place
    ),
    "columns of a tile": (
        on_chip(lambda t: nisa.dma_copy(t[:, 0:4], t[:, 3:7])),
        on_chip(lambda t: nisa.dma_copy(t[:, 0:4], t[:, 4:8])),
    ),
    "columns that do not meet": (
        on_chip(lambda t: nisa.dma_copy(t[:, 0:8:2], t[:, 2:6])),
        on_chip(lambda t: nisa.dma_copy(t[:, 0:8:2], t[:, 1:9:2])),
    ),
    "a transpose by DMA": (
        on_chip(lambda t: nisa.dma_transpose(t[:, 0:32], t[:, 0:32])),
        on_chip(lambda t: nisa.dma_transpose(t[:, 0:32], t[:, 32:64])),
    ),
    "a transpose by Vector": (
        on_chip(lambda t: vector_transpose(t[:, 0:32], t[:, 0:32])),
        on_chip(lambda t: vector_transpose(t[:, 0:32], t[:, 32:64])),
    ),
    "a sum": (lambda x: add(x[0:4], x[0:4], x[1:5]), lambda x: add(x[0:4], x[0:4], x[4:8])),
    "an exchange": (
        on_chip(lambda t: swap(nisa.sendrecv, t, t, pipe_id=0)),
        on_chip(lambda t: swap(nisa.sendrecv, t[:, 0:32], t[:, 32:64], pipe_id=0)),
    ),
    "an exchange with a sum": (
        on_chip(lambda t: swap(nisa.sendrecv_compute, t, t, reduce_op=nl.add)),
        on_chip(lambda t: swap(nisa.sendrecv_compute, t[:, 0:32], t[:, 32:64], reduce_op=nl.add)),
    ),
    "a collective": (
        on_chip(lambda t: reduce_all([t], [t])),
        on_chip(lambda t: reduce_all([t[:, 0:32]], [t[:, 32:64]])),
    ),
}
OVERLAPS["two results of a collective"] = (
    lambda x: reduce_all([x[0:2], x[2:4]], [x[4:6], x[5:7]]),
    lambda x: reduce_all([x[0:2], x[2:4]], [x[4:6], x[6:8]]),
)
REPEATS: dict[str, tuple[Body, Body]] = {
    "a stride of 0": (
        on_chip(lambda t: nisa.dma_copy(t.ap([[64, 32], [0, 4]]), tile(32, 4))),
        on_chip(lambda t: nisa.dma_copy(t.ap([[64, 32], [1, 4]]), tile(32, 4))),
    ),
    "a broadcast row": (
        lambda x: nisa.dma_copy(x[0:1].broadcast(0, 4), tile(4, 64)),
        lambda x: nisa.dma_copy(x[0:1].broadcast(0, 1), tile(1, 64)),
    ),
    "overlapping rows": (
        lambda x: nisa.dma_copy(x.ap([[3, 4], [1, 4]]), tile(4, 4)),
        lambda x: nisa.dma_copy(x.ap([[4, 4], [1, 4]]), tile(4, 4)),
    ),
    "a matmul": (
        on_chip(lambda t: matmul(t, [[8, 4], [0, 3]])),
        on_chip(lambda t: matmul(t, [[8, 4], [2, 3]])),
    ),
    "overlapping windows of a matmul": (
        on_chip(lambda t: matmul(t, [[8, 4], [2, 3], [1, 3]])),
        on_chip(lambda t: matmul(t, [[9, 4], [3, 3], [1, 3]])),
    ),
    "columns of a transpose": (
        on_chip(lambda t: nisa.dma_transpose(t.ap([[64, 2], [0, 4]]), tile(4, 2))),
        on_chip(lambda t: nisa.dma_transpose(t.ap([[64, 2], [2, 4]]), tile(4, 2))),
    ),
}


def launch(body: Body, level: str) -> Any:
    cores = 2 if body in OVERLAPS["an exchange"] + OVERLAPS["an exchange with a sum"] else None
    return run(body, np.ones((32, 64), np.float32), cores=cores, overlapping_copies=level)


@pytest.mark.parametrize(("found", "corrected"), (OVERLAPS | REPEATS).values(), ids=OVERLAPS | REPEATS)
def test_findings_and_their_corrected_twins(found: Body, corrected: Body) -> None:
    launch(corrected, "error")
    with pytest.raises(OverlappingCopyError):
        launch(found, "error")
    launch(found, "ignore")
    forget_warnings()
    with pytest.warns(SimulatorWarning) as caught:
        launch(found, "warn")
    assert len(caught) == 1 and caught[0].filename == __file__


def test_the_messages() -> None:
    message = refused(OverlappingCopyError, lambda: launch(OVERLAPS["rows in HBM"][0], "error"))
    assert without_place(message, "nisa.dma_copy") == (
        "operands 'dst' and 'src' overlap in their memory, as in element [1, 0] of the first one's tensor, and the "
        "documentation promises no order in which elements move, got tensor 'x' [3, 64] float32 in private_hbm and "
        "tensor 'x' [3, 64] float32 in private_hbm: copy by way of another tensor; using(overlapping_copies='ignore') "
        "or NKILIB_OVERLAPPING_COPIES=ignore runs the kernel"
    )
    message = refused(OverlappingCopyError, lambda: launch(REPEATS["a matmul"][0], "error"))
    assert without_place(message, "nisa.nc_matmul") == (
        "operand 'dst' holds an element more than once, and the documentation promises no order in which elements are "
        "written, got tensor [4, 3] float32 in psum with the strides [8, 0]: write each element once; "
        "using(overlapping_copies='ignore') or NKILIB_OVERLAPPING_COPIES=ignore runs the kernel"
    )


@pytest.mark.parametrize(
    "body",
    [
        lambda x: nisa.dma_copy(x, x),
        lambda x: nisa.dma_copy(x[2:4], x[2:4].reshape((4, 32))),
        lambda x: nisa.dma_copy(x[2:4].reshape((1, 2, 64)), x[2:4]),
        lambda x: nisa.dma_copy(tile(4, 64), x[0:1].broadcast(0, 4)),  # the source may repeat
        on_chip(lambda t: nisa.dma_transpose(t[0:1, 0:1], t[0:1, 0:1])),
        on_chip(lambda t: vector_transpose(t[0:1, 0:1], t[0:1, 0:1])),
        on_chip(lambda t: nisa.tensor_copy(t[:, 0:4], t[:, 1:5])),
        on_chip(lambda t: nisa.tensor_tensor(t, t, t, nl.add)),
        on_chip(lambda t: nisa.activation(t.ap([[64, 32], [0, 4]]), nl.square, tile(32, 4))),
        lambda x: nisa.dma_copy(x[nl.ds(nisa.scalar_load(hbm_int(1)), 1)], x[1]),
    ],
    ids=[
        "itself",
        "rows as others",
        "one more dimension",
        "a repeated source",
        "one element",
        "one element by Vector",
        "an engine",
        "in place",
        "a result that is discarded",
        "an address that the device reads",
    ],
)
def test_no_findings(body: Body) -> None:
    with warnings.catch_warnings(record=True) as caught:
        launch(body, "error")
        forget_warnings()
        launch(body, "warn")
    assert caught == []


def hbm_int(value: int) -> Any:
    made = hbm(1, 1, dtype=nl.int32)
    nisa.dma_copy(made, tile(1, 1, dtype=nl.int32, value=value))
    return made


def test_arguments_that_share_memory() -> None:
    def kernel(x: Any, y: Any) -> None:
        nisa.dma_copy(x, y)

    x = np.ones((4, 8), np.float32)
    with pytest.raises(OverlappingCopyError, match=r"element \[1, 0\] of the first one's tensor"):
        run(kernel, x[0:3], x[1:4], overlapping_copies="error")
    run(kernel, x[0:2], x[2:4], overlapping_copies="error")
    run(kernel, x, x.view(), overlapping_copies="error")
    run(lambda x, y: nisa.dma_copy(x[1:3], y[0:2]), x, x[1:4], overlapping_copies="error")  # each row at its place


@pytest.mark.parametrize("level", ["warn", "ignore"])
def test_launches_with_a_finding_are_not_replayed_and_others_are(level: str) -> None:
    @nki.jit
    @replayable
    def kernel(x: Any, first: int) -> Any:
        nisa.dma_copy(x[first : first + 2], x[0:2])
        return x

    def replayed(first: int) -> int:
        before = nkilib.simulator.replay_counts().kernels["kernel"].replayed if first != 2 else 0
        for _ in range(6):
            x = kernel(np.arange(8, dtype=np.float32).reshape(4, 2), first)
            assert x[first : first + 2].tolist() == [[0, 1], [2, 3]]
        return nkilib.simulator.replay_counts().kernels["kernel"].replayed - before

    with nkilib.simulator.using(overlapping_copies=level), warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulatorWarning)
        assert replayed(2) > 0
        assert (replayed(1) > 0) == (level == "ignore")


def test_kernels_of_the_library_are_replayed_although_they_would_be_warned_of() -> None:
    logits, targets = np.ones((8, 32), np.float32), np.zeros(8, np.int32)
    kernel = cross_entropy_forward[2]
    with nkilib.simulator.using(overlapping_copies="warn", psum_groups="warn"):
        for _ in range(6):
            kernel(logits, targets, 8, 32, nl.float32)
    assert nkilib.simulator.replay_counts().kernels[kernel.__name__].replayed >= 2


def test_without_values_the_same_is_found() -> None:
    kernel, shape = nki.jit(OVERLAPS["rows in HBM"][0]), (32, 64)
    skipping = nkilib.simulator.simulate(kernel, skip_arithmetic=True)
    with nkilib.simulator.using(overlapping_copies="error"):
        for launch_it in (
            lambda: skipping(np.ones(shape, np.float32)),
            lambda: kernel(nkilib.simulator.spec(shape, nl.float32)),
        ):
            assert "overlap in their memory" in refused(OverlappingCopyError, launch_it)


def test_all_ranks_are_told() -> None:
    def kernel(x: Any) -> Any:
        made = load(x)
        ncc.all_reduce([made], [made], ncc.ReplicaGroup([[0, 1]]), nl.add)
        return store(made)

    with nkilib.simulator.using(overlapping_copies="error"), pytest.raises(NkiValidationError, match="on rank 0"):
        ranks(2)(nki.jit(kernel))(per_rank(np.ones((2, 4, 8), np.float32)))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-14, 14)), max_size=4))
def test_an_element_is_held_twice_if_and_only_if_two_indices_lead_to_it(dimensions: list[tuple[int, int]]) -> None:
    shape, strides = (tuple(item[place] for item in dimensions) for place in (0, 1))
    held = [sum(map(math.prod, zip(index, strides, strict=True))) for index in product(*map(range, shape))]
    assert has_repeats(shape, strides) == (len(set(held)) < len(held))
