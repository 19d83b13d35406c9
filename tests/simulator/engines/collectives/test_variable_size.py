# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``all_to_all_v`` and ``all_gather_v``, at once and in two steps: shares whose sizes are read at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import NkiValidationError, UninitializedReadError, per_rank, ranks, using
from tests.simulator.frame import refused
from tests.simulator.ranked import Array, all_of, integers, ncc

SLOT = 5
UNWRITTEN = -100.0


def counts_of(seed: int, count: int) -> Array:
    """[sender, receiver] elements, of which some are 0 and none is more than a slot."""
    counts = np.random.default_rng(seed).integers(0, SLOT + 1, (count, count))
    counts[0, -1], counts[-1, 0] = 0, SLOT
    return counts


def starts_of(counts: Array) -> Array:
    """[sender, receiver] first elements where shares follow each other."""
    return np.cumsum(counts, axis=1) - counts


def metadata_of(counts: Array, *further: Array) -> Array:
    """[rank, row, column]: counts and starts of what is sent, a row to be filled, and others."""
    empty = np.zeros_like(counts)
    return np.stack([counts, starts_of(counts), empty, *further], axis=1).astype(np.uint32)


def exchange(
    operation: Callable[..., object], memory: Any, metadata_memory: Any, size: int, **flags: bool
) -> Callable[..., Any]:
    """A kernel: `operation` from its first argument to a tensor of `size` elements; what it receives, and metadata."""

    def kernel(x: Any, metadata: Any) -> Any:
        count = metadata.shape[1]
        src, dst = nl.ndarray(x.shape, x.dtype, memory), nl.full((size,), UNWRITTEN, x.dtype, memory)
        nisa.dma_copy(src, x)
        shape = (1, *metadata.shape) if metadata_memory is nl.sbuf else metadata.shape
        numbers = nl.ndarray(shape, nl.uint32, metadata_memory)
        nisa.dma_copy(numbers, metadata)
        operation([src], [dst], all_of(count), numbers, **flags)
        received, known = (nl.ndarray(tensor.shape, tensor.dtype, nl.shared_hbm) for tensor in (dst, metadata))
        nisa.dma_copy(received, dst)
        nisa.dma_copy(known, numbers)
        return received, known

    return nki.jit(kernel)


def in_two_steps(prepare: Callable[..., Any], trigger: Callable[..., Any]) -> Callable[..., None]:
    """The two halves of an operation; the source is filled in between."""

    def operation(srcs: Sequence[Any], dsts: Sequence[Any], group: Any, metadata: Any, **flags: bool) -> None:
        handle = prepare(srcs, dsts, group, metadata, **flags)
        nisa.dma_copy(srcs[0], srcs[0])
        trigger(handle)

    return operation


TO_ALL = {"at once": ncc.all_to_all_v, "in two": in_two_steps(ncc.all_to_all_v_prepare, ncc.all_to_all_v_trigger)}
GATHER = {"at once": ncc.all_gather_v, "in two": in_two_steps(ncc.all_gather_v_prepare, ncc.all_gather_v_trigger)}
HBM = [(nl.private_hbm, 1), (nl.shared_hbm, 2)]


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize(("memory", "cores"), HBM, ids=["one core", "two cores"])
@pytest.mark.parametrize("metadata_memory", [nl.sbuf, None], ids=["in sbuf", "in HBM"])
@pytest.mark.parametrize("operation", TO_ALL.values(), ids=TO_ALL)
def test_all_to_all_v_into_equal_slots(
    count: int, memory: Any, cores: int, metadata_memory: Any, operation: Callable[..., object]
) -> None:
    counts = counts_of(count, count)
    x = integers(count, count, SLOT * count)
    kernel = exchange(operation, memory, metadata_memory or memory, SLOT * count)
    results = ranks(count)(kernel[cores])(per_rank(x), per_rank(metadata_of(counts)))
    starts = starts_of(counts)
    for rank, (received, known) in enumerate(results):
        expected = np.full((count, SLOT), UNWRITTEN)
        for sender in range(count):
            start = starts[sender, rank]
            expected[sender, : counts[sender, rank]] = x[sender, start : start + counts[sender, rank]]
        assert np.array_equal(received.reshape(count, SLOT), expected)
        assert known.tolist() == [counts[rank].tolist(), starts[rank].tolist(), counts[:, rank].tolist()]


@pytest.mark.parametrize("recv_counts_known", [False, True])
def test_all_to_all_v_where_the_receiver_wants_it(recv_counts_known: bool) -> None:
    """Each receiver packs what it gets; known counts are not written."""
    counts = counts_of(3, 4)
    places = np.stack([np.cumsum(counts[:, rank]) - counts[:, rank] for rank in range(4)])
    x = integers(3, 4, SLOT * 4)
    kernel = exchange(
        ncc.all_to_all_v,
        nl.private_hbm,
        nl.private_hbm,
        SLOT * 4,
        has_rdispls=True,
        recv_counts_known=recv_counts_known,
    )
    results = ranks(4)(kernel)(per_rank(x), per_rank(metadata_of(counts, places)))
    starts = starts_of(counts)
    for rank, (received, known) in enumerate(results):
        shares = [x[sender, starts[sender, rank] :][: counts[sender, rank]] for sender in range(4)]
        expected = np.concatenate(shares)
        assert np.array_equal(received[: expected.size], expected) and (received[expected.size :] == UNWRITTEN).all()
        assert known[2].tolist() == ([0] * 4 if recv_counts_known else counts[:, rank].tolist())


def test_a_fourth_row_that_is_not_used() -> None:
    counts = np.full((2, 2), 3)
    kernel = exchange(ncc.all_to_all_v, nl.private_hbm, nl.private_hbm, 2 * SLOT)
    x = integers(0, 2, 6)
    results = ranks(2)(kernel)(per_rank(x), per_rank(metadata_of(counts, np.full((2, 2), 77))))
    for rank, (received, _) in enumerate(results):
        expected = np.concatenate([x[0, 3 * rank :][:3], [UNWRITTEN] * 2, x[1, 3 * rank :][:3], [UNWRITTEN] * 2])
        assert np.array_equal(received, expected)


@pytest.mark.parametrize("operation", GATHER.values(), ids=GATHER)
@pytest.mark.parametrize(("lists", "count"), [([[0, 1, 2, 3]], 4), ([[3, 1, 0, 2], [4, 5, 6, 7]], 8)])
def test_all_gather_v(operation: Callable[..., object], lists: list[list[int]], count: int) -> None:
    """Only the first column of counts and starts is read."""
    sizes, starts = [(3 * rank) % (SLOT + 1) for rank in range(count)], [rank % 2 for rank in range(count)]
    metadata = np.full((count, 3, 4), 99, np.uint32)
    metadata[:, 0, 0], metadata[:, 1, 0] = sizes, starts
    group = ncc.ReplicaGroup(lists)
    x = integers(count, count, SLOT + 1)
    kernel = exchange(
        lambda *args, **flags: operation(*args[:2], group, args[3], **flags), nl.shared_hbm, nl.sbuf, 4 * SLOT
    )
    results = ranks(count)(kernel[2])(per_rank(x), per_rank(metadata))
    for rank, (received, known) in enumerate(results):
        members = next(item for item in lists if rank in item)
        expected = np.full((4, SLOT), UNWRITTEN)
        for slot, sender in enumerate(members):
            expected[slot, : sizes[sender]] = x[sender, starts[sender] :][: sizes[sender]]
        assert np.array_equal(received.reshape(4, SLOT), expected)
        assert known[2].tolist() == [sizes[sender] for sender in members]


def test_prepared_metadata_are_those_of_the_prepare() -> None:
    """Metadata written after the prepare do not count; the source is that of the trigger."""

    def kernel(x: Any, metadata: Any) -> Any:
        src, dst = nl.zeros((4,), x.dtype, nl.private_hbm), nl.zeros((4,), x.dtype, nl.private_hbm)
        numbers = nl.ndarray((3, 2), nl.uint32, nl.private_hbm)
        nisa.dma_copy(numbers, metadata)
        handle = ncc.all_to_all_v_prepare([src], [dst], all_of(2), numbers, recv_counts_known=True)
        nisa.dma_copy(numbers, nl.zeros((3, 2), nl.uint32, nl.private_hbm))
        nisa.dma_copy(src, x)
        ncc.all_to_all_v_trigger(prepare_instr=handle)
        return dst

    x = integers(1, 2, 4)
    results = ranks(2)(nki.jit(kernel))(per_rank(x), metadata_of(np.full((2, 2), 2))[0])
    for rank, result in enumerate(results):
        assert np.array_equal(result, np.concatenate([x[0, 2 * rank :][:2], x[1, 2 * rank :][:2]]))


def tensors() -> tuple[list[Any], list[Any], Any, Any]:
    """Make the tensors that an operation among two ranks needs, of 4 elements, in a kernel."""
    src, dst = nl.zeros((4,), nl.float32, nl.private_hbm), nl.zeros((4,), nl.float32, nl.private_hbm)
    return [src], [dst], all_of(2), nl.zeros((3, 2), nl.uint32, nl.private_hbm)


def prepared_twice() -> None:
    ncc.all_to_all_v_prepare(*tensors())
    ncc.all_to_all_v_prepare(*tensors())


def triggered_twice() -> None:
    handle = ncc.all_to_all_v_prepare(*tensors())
    ncc.all_to_all_v_trigger(handle)
    ncc.all_to_all_v_trigger(handle)


def triggered_by_another() -> None:
    ncc.all_to_all_v_prepare(*tensors())
    ncc.all_to_all_v_trigger(nisa.dma_copy(*(nl.zeros((2, 2), nl.float32, nl.private_hbm) for _ in range(2))))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            prepared_twice,
            " and not triggered yet, and there is one slot; call nki.collectives.all_to_all_v_trigger first",
        ),
        (triggered_twice, "and nothing is prepared"),
        (triggered_by_another, "got <nisa.dma_copy>, and <nki.collectives.all_to_all_v_prepare> is what is prepared"),
        (
            lambda: ncc.all_gather_v_trigger(ncc.all_to_all_v_prepare(*tensors())),
            "prepare_instr must be what nki.collectives.all_gather_v_prepare returned",
        ),
        (
            lambda: ncc.all_to_all_v_prepare(*tensors()) and None,
            " needs one all_to_all_v_trigger; the kernel ended without it",
        ),
        (lambda: ncc.all_gather_v(*tensors()), "all_gather_v needs ranks of two cores: kernel[2]"),
        (lambda: ncc.all_gather_v(*tensors(), has_rdispls=True), "has_rdispls=True is not supported by all_gather_v"),
        (
            lambda: ncc.all_to_all_v(*tensors(), has_rdispls=True),
            "metadata_tensor must be dense and have shape [4, 2] in private_hbm, got tensor [3, 2] uint32",
        ),
        (
            lambda: ncc.all_to_all_v(*tensors()[:3], nl.zeros((3, 2), nl.int32, nl.private_hbm)),
            "operand 'metadata_tensor[0]' must have one of the types uint32",
        ),
        (
            lambda: ncc.all_to_all_v(tensors()[0], [nl.zeros((5,), nl.float32, nl.private_hbm)], *tensors()[2:]),
            "dsts[0] is cut into 2 equal slots, got 5 elements",
        ),
    ],
)
def test_refused(body: Callable[[], object], message: str) -> None:
    error = refused(NkiValidationError, lambda: ranks(2)(nki.jit(lambda: [body(), None][1]))())
    assert message in error and ("rank 0" in error or "rank 1" in error)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([[3, 0], [0, 0]], "rank 0 sends 3 elements, and from element 0 on dsts[0] has room for 2"),
        ([[2, 3], [0, 0]], "metadata_tensor: elements 2 to 5 are to be sent, and srcs[0] has 4"),
    ],
)
def test_counts_that_do_not_fit(counts: list[list[int]], message: str) -> None:
    kernel = exchange(ncc.all_to_all_v, nl.private_hbm, nl.private_hbm, 4)
    error = refused(
        NkiValidationError,
        lambda: ranks(2)(kernel)(per_rank(integers(0, 2, 4)), per_rank(metadata_of(np.array(counts)))),
    )
    assert "nki.collectives.all_to_all_v on rank 0: " + message in error


def test_who_wrote_beside_what_nobody_wrote() -> None:
    def kernel(metadata: Any) -> Any:
        src, dst = nl.zeros((4,), nl.float32, nl.private_hbm), nl.ndarray((4,), nl.float32, nl.shared_hbm)
        ncc.all_to_all_v([src], [dst], all_of(2), metadata, recv_counts_known=True)
        return dst

    line = kernel.__code__.co_firstlineno + 2
    metadata = metadata_of(np.array([[1, 1], [1, 1]]))
    with using(uninitialized="error"), pytest.raises(UninitializedReadError) as caught:
        ranks(2)(kernel)(per_rank(metadata))
    assert "of which 2 of 4 elements were never written: the first is [1], the last [3]; " in str(caught.value)
    assert str(caught.value).endswith(f"{__file__}:{line} was the last to write near it")
