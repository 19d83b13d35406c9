# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`sendrecv_compute`: two simulated cores swap tensors, and each reduces its own with the other's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl

from ...frame import error_of_cores
from ...kernels import execute, hbm, hbm_zeros, normal, refusal, sbuf, tile
from ...made import Hbm, Psum, Sbuf, lazily
from ...rules import Rule, broken, check_rule_on_two_cores, legal, rules
from ...sentences import COPY_FIRST, must

BARRIER = nkilib.simulator.BarrierError
NUMPY = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}


def meet(src: Any, dst: Any, op: Any = nl.add) -> Any:
    """Reduce with the other core, in a kernel."""
    other = 1 - nl.program_id(0)
    return nisa.sendrecv_compute(src, dst, other, other, op)


def reduced(arrays: Any, op: Any, make: Callable[..., Any] = sbuf) -> Any:
    """Return what each core holds when core c has brought `arrays[c]`; `make` says in which memory."""

    def kernel(inputs: Any) -> Any:
        core = nl.program_id(0)
        results = [nl.ndarray(array.shape, array.dtype, nl.shared_hbm) for array in inputs]
        src, dst = (make(*inputs[core].shape, dtype=inputs[core].dtype) for _ in range(2))
        nisa.dma_copy(src, inputs[core])
        meet(src, dst, op)
        nisa.dma_copy(results[core], dst)
        return results

    return nki.jit(kernel)[2](list(arrays))


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("make", [sbuf, hbm], ids=["sbuf", "private_hbm"])
@pytest.mark.parametrize("shape", [(128, 3), (5, 2, 3), (7, 1, 4, 2)], ids=str)
def test_both_cores_get_the_reduction(name: str, make: Any, shape: Any) -> None:
    first, second = normal(*shape), normal(*shape, seed=1)
    results = reduced([first, second], getattr(nl, name), make)
    # Of float64, rounded once.
    expected = NUMPY[name](first.astype(np.float64), second.astype(np.float64)).astype(np.float32)
    assert [result.tolist() for result in results] == [expected.tolist()] * 2


@pytest.mark.parametrize(
    ("kind", "first", "second", "expected"),
    [
        (ml_dtypes.bfloat16, [1, 256], [2, 1.5], [3, 258]),  # 257.5 lies between 256 and 258, nearer to the latter
        (np.float16, [2048, 1], [1, 1], [2048, 2]),  # 2049 rounds to even
        (np.int8, [100, -100], [100, -100], [127, -128]),
        (np.int32, [2**24 + 1, 5], [0, -9], [2**24, -4]),  # by way of float32, as every arithmetic of DMA
    ],
)
def test_sums_are_of_float32_and_cast_to_the_type(kind: Any, first: Any, second: Any, expected: Any) -> None:
    for result in reduced([np.array([first], kind), np.array([second], kind)], nl.add):
        assert result.astype(np.float64).tolist() == [expected]


def test_nan_and_infinity() -> None:
    first, second = np.array([[np.nan, np.inf, 1]], np.float32), np.array([[1, -np.inf, np.inf]], np.float32)
    for op, expected in ((nl.add, [np.nan, np.nan, np.inf]), (nl.maximum, [np.nan, np.inf, np.inf])):
        for result in reduced([first, second], op):
            assert np.array_equal(result, [expected], equal_nan=True)


@nkilib.simulator.using(overlapping_copies="ignore")
def test_in_place_and_again() -> None:
    """A core brings what it held before: 1 and 2, then 3 on both."""

    def kernel() -> Any:
        core = nl.program_id(0)
        result, made = nl.ndarray((2, 2), nl.float32, nl.shared_hbm), tile(1, 2, value=1 + core)
        for number in range(2):
            if number == core:
                time.sleep(0.001)
            meet(made, made)
        nisa.dma_copy(result[core : core + 1], made)
        return result

    assert execute(kernel, cores=2).tolist() == [[6, 6]] * 2


def test_parts_of_a_tile_that_no_compute_engine_accesses() -> None:
    """Every second partition from 1 on, and the columns beside."""

    def kernel(data: Any) -> Any:
        core = nl.program_id(0)
        result, made = nl.ndarray((2, 6, 4), nl.float32, nl.shared_hbm), sbuf(6, 4)
        nisa.dma_copy(made, data[core])
        meet(made[1:6:2, 0:2], made[1:6:2, 2:4], nl.minimum)
        nisa.dma_copy(result[core], made)
        return result

    data = normal(2, 6, 4)
    expected = data.copy()
    expected[:, 1::2, 2:] = data[:, 1::2, :2].min(axis=0)
    assert nki.jit(kernel)[2](data).tolist() == expected.tolist()


@pytest.mark.parametrize(("make", "nbytes"), [(tile, 0), (hbm_zeros, 2 * 2 * 3 * 4)], ids=["sbuf", "private_hbm"])
def test_bytes_that_cross_hbm_are_counted(make: Any, nbytes: int) -> None:
    """The bytes count on both cores, once read and once written, besides what makes the tensors."""

    def traffic(meets: bool) -> tuple[int, int]:
        def kernel() -> None:
            src, dst = make(2, 3), make(2, 3)
            if meets:
                meet(src, dst)

        with nkilib.simulator.recording() as record:
            execute(kernel, cores=2)
        return record.hbm_read_bytes, record.hbm_written_bytes

    (read, written), (read_before, written_before) = traffic(True), traffic(False)
    assert (read - read_before, written - written_before) == (nbytes, nbytes)


OTHER, ITSELF = lazily(lambda: 1 - nl.program_id(0)), lazily(nl.program_id, 0)
UNWRITTEN = Sbuf(2, 2, value=None)


@rules(
    legal(nisa.sendrecv_compute, Sbuf(2, 2), UNWRITTEN, OTHER, OTHER, nl.add),
    broken("operator", reduce_op=nl.multiply)
    .says("reduce_op must be nl.add, nl.maximum or nl.minimum, got nl.multiply")
    .fixed(reduce_op=nl.max),
    broken("one in HBM", dst=Hbm(2, 2, value=None))
    .says("operands 'src' and 'dst' must both be in sbuf or both in HBM, got {src} and {dst}")
    .fixed(src=Hbm(2, 2)),
    broken("dst in shared HBM", dst=Hbm(2, 2, value=None, buffer=nl.shared_hbm)).says(
        must("dst", "be in private_hbm or sbuf")
    ),
    broken("src in PSUM", src=Psum(2, 2)).says(must("src", "be in private_hbm or sbuf", COPY_FIRST)),
    broken("type", dst=Sbuf(2, 2, dtype=nl.bfloat16, value=None)).says(
        "operands 'src' and 'dst' must have one shape and type, got {src} and {dst}"
    ),
    broken("to itself", send_to_rank=ITSELF).says(
        "send_to_rank must be the other core, {{other}} on core {{core}}, got {{core}}"
    ),
    broken("unwritten src", src=UNWRITTEN, error=nkilib.simulator.UninitializedReadError).says(
        "operand 'src': 4 of the 4 elements of {src} were never written"
    ),
)
def test_rules(rule: Rule) -> None:
    check_rule_on_two_cores(rule)


def test_it_needs_two_cores_and_trn2() -> None:
    def alone() -> None:
        nisa.sendrecv_compute(tile(1, 1), sbuf(1, 1), 1, 1, nl.add)

    assert refusal(alone) == "nisa.sendrecv_compute: needs a launch on two cores: kernel[2](...)"
    assert refusal(alone, "trn1").startswith("nisa.sendrecv_compute: needs gen3 or newer; the target is trn1 (gen2)")


# -- when the two sides do not fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda core: meet(tile(2, 3 + core), sbuf(2, 3 + core)),
            "the cores must swap tiles of one shape and type: core 0 sends tensor [2, 3] float32 in sbuf and core 1 "
            "sends tensor [2, 4] float32 in sbuf",
        ),
        (
            lambda core: meet(tile(2, 2), sbuf(2, 2), nl.add if core else nl.minimum),
            "the cores must name one reduce_op and memory: core 0 gives nl.minimum in sbuf and core 1 nl.add in sbuf",
        ),
        (
            lambda core: meet(tile(2, 2), sbuf(2, 2)) if core else meet(hbm_zeros(2, 2), hbm(2, 2)),
            "the cores must name one reduce_op and memory: core 0 gives nl.add in private_hbm and core 1 nl.add in "
            "sbuf",
        ),
    ],
)
def test_both_sides_are_named(call: Any, message: str) -> None:
    error = error_of_cores(lambda: call(nl.program_id(0)))
    assert type(error) is nisa.NkiValidationError
    assert str(error).partition(": ")[2] == f"nisa.sendrecv_compute on core 0: {message}"


def test_a_core_that_comes_to_another_exchange_or_not_at_all() -> None:
    def elsewhere() -> None:
        if nl.program_id(0):
            nisa.sendrecv(tile(1, 1), sbuf(1, 1), 0, 0, 3)
        else:
            meet(tile(1, 1), sbuf(1, 1))

    def absent() -> None:
        if nl.program_id(0):
            meet(tile(1, 1), sbuf(1, 1))

    error = error_of_cores(elsewhere)
    assert type(error) is BARRIER and "the other core waits in sendrecv(pipe_id=3) instead" in str(error)
    error = error_of_cores(absent)
    assert type(error) is BARRIER and "the other core ended without reaching this barrier" in str(error)
