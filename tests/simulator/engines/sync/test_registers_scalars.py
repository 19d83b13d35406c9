# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`scalar_load`, `scalar_store`, and the parameters that take a scalar: integers that only the device knows."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl

from ...frame import counted
from ...kernels import execute, launch, store, tile
from ...made import Hbm, Psum, Sbuf, lazily
from ...rules import Rule, broken, check_rule, legal, rules
from ...sentences import COPY_FIRST, DMA_MEMORIES, must

INT32, INT64 = nl.int32, nl.int64


def scalar(value: int, dtype: Any = INT32) -> Any:
    """Read a scalar of this value from memory, in a kernel."""
    halves = nl.zeros((1, 2), INT32)
    nisa.memset(halves[:, 0:1], value)
    return nisa.scalar_load(halves.view(dtype)[:, 0:1])


def through_a_scalar(array: Any, compute: Any = lambda s: s) -> Any:
    """Return what `compute` makes of the scalar in `array`, by way of SBUF and of HBM alone, which must agree."""

    @nki.jit
    def kernel(given: Any) -> Any:
        loaded, made = nl.ndarray((1, 1), given.dtype), nl.ndarray((1, 1), given.dtype)
        direct, result = (nl.ndarray((1, 1), given.dtype, nl.shared_hbm) for _ in range(2))
        nisa.dma_copy(loaded, given)
        nisa.scalar_store(made, compute(nisa.scalar_load(loaded)))
        nisa.dma_copy(result, made)
        nisa.scalar_store(direct, compute(nisa.scalar_load(given)))
        return result, direct

    result, direct = kernel(array)
    assert result.dtype == direct.dtype == array.dtype and result.tolist() == direct.tolist()
    return result[0, 0]


@pytest.mark.parametrize(
    "value", [np.int32(-(2**31)), np.int32(2**24 + 1), np.int64(-(2**63)), np.int64(2**53 + 1), np.int64(5 * 2**32)]
)
def test_load_and_store_keep_every_value(value: Any) -> None:
    assert through_a_scalar(np.array([[value]])) == value


def test_what_is_computed_on_the_way() -> None:
    assert through_a_scalar(np.array([[100000]], np.int32), lambda s: s * 4 + 1) == 400001
    assert through_a_scalar(np.array([[100000]], np.int32), lambda s: s * s) == 1410065408
    assert through_a_scalar(np.array([[100000]]), lambda s: 7 - s * s) == 7 - 10**10


def test_an_element_of_a_larger_tile() -> None:
    def kernel(inputs: Any) -> Any:
        data, result = nl.ndarray(inputs.shape, INT32), nl.zeros((4, 2), INT32)
        nisa.dma_copy(data, inputs)
        nisa.scalar_store(result[3:4, 1:2], nisa.scalar_load(data[5:6, 2:3]))
        return store(result)

    array, expected = counted(6, 4, dtype=np.int32), np.zeros((4, 2), np.int32)
    expected[3, 1] = array[5, 2]
    np.testing.assert_array_equal(launch(kernel, array), expected)


def test_a_scalar_keeps_what_was_in_memory_when_it_was_loaded() -> None:
    def kernel() -> Any:
        memory = tile(1, 1, dtype=INT32, value=3)
        loaded = nisa.scalar_load(memory)
        nisa.memset(memory, 8)
        nisa.scalar_store(memory, loaded)
        return store(memory)

    assert execute(kernel).tolist() == [[3]]


def test_their_signatures_and_what_is_recorded() -> None:
    assert [*inspect.signature(nisa.scalar_load).parameters] == ["src"]
    assert [*inspect.signature(nisa.scalar_store).parameters] == ["dst", "value"]
    with nkilib.simulator.recording() as record:
        execute(lambda: nisa.scalar_store(tile(1, 1, dtype=INT32), scalar(1) + 1))
    assert record.instruction_counts == {"memset": 3, "scalar_load": 1, "scalar_store": 1}
    with pytest.raises(TypeError, match=r"nisa.scalar_load: missing a required argument: 'src'"):
        nisa.scalar_load()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"nisa.scalar_store: got an unexpected keyword argument 'name'"):
        nisa.scalar_store(1, 2, name="x")  # type: ignore[call-arg,arg-type]


# -- where a scalar goes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [INT32, INT64])
@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (lambda x, s: x[s], np.s_[2]),
        (lambda x, s: x[:, nl.ds(s * 2 + 1, 3)], np.s_[:, 5:8]),
        (lambda x, s: x.select(1, s - 1), np.s_[:, 1]),
        (lambda x, s: x.ap([[8, 2], [1, 5]], scalar_offset=s, indirect_dim=0), np.s_[2:, :5]),
    ],
)
def test_in_hbm_it_is_an_offset_of_32_or_64_bits(view: Any, expected: Any, dtype: Any) -> None:
    def kernel(source: Any) -> Any:
        chosen = view(source, scalar(2, dtype))
        result = nl.ndarray(chosen.shape, chosen.dtype, nl.shared_hbm)
        nisa.dma_copy(result, chosen)
        nisa.dma_copy(view(source, scalar(2, dtype)), result)
        return result

    array = counted(4, 8)
    np.testing.assert_array_equal(launch(kernel, array), counted(4, 8)[expected])


def test_on_chip_it_is_an_offset_of_32_bits() -> None:
    def kernel(source: Any) -> Any:
        data = nl.load(source)
        result = nl.ndarray((4, 3), data.dtype)
        nisa.tensor_copy(result, data[:, nl.ds(scalar(2) + 1, 3)])
        return store(result)

    np.testing.assert_array_equal(launch(kernel, counted(4, 8)), counted(4, 8)[:, 3:6])


def test_the_scalar_of_a_loop_walks_through_a_tensor() -> None:
    """Rows 1 and 3, each doubled; the count comes from memory."""

    def kernel(data: Any, count: Any) -> Any:
        output = nl.zeros(data.shape, data.dtype, nl.shared_hbm)

        def body(i: Any) -> None:
            row = nl.ndarray((1, 3), data.dtype)
            nisa.dma_copy(row, data[nl.ds(i * 2 + 1, 1)])
            nisa.tensor_scalar(row, row, nl.multiply, 2.0)
            nisa.dma_copy(output[nl.ds(2 * i + 1, 1)], row)

        nl.fori_loop(0, nisa.scalar_load(count) - 1, body)
        return output

    data, expected = counted(6, 3), np.zeros((6, 3), np.float32)
    expected[[1, 3]] = 2 * data[[1, 3]]
    np.testing.assert_array_equal(launch(kernel, data, np.array([[3]], np.int32)), expected)


@pytest.mark.parametrize("make", [scalar, lambda value: nisa.register_alloc(value)], ids=["scalar", "register"])
def test_iota_and_affine_select_take_it_as_offset(make: Any) -> None:
    def kernel() -> Any:
        counts, chosen = nl.ndarray((3, 4), INT32), nl.ndarray((3, 4), INT32)
        nisa.iota(counts, [[2, 4]], offset=make(-5), channel_multiplier=10)
        nisa.affine_select(chosen, [[1, 4]], -1, counts, -7.0, cmp_op=nl.greater_equal, offset=make(-1))
        return store(counts), store(chosen)

    counts, chosen = execute(kernel)
    partition, column = np.mgrid[:3, :4]
    np.testing.assert_array_equal(counts, -5 + 10 * partition + 2 * column)
    np.testing.assert_array_equal(chosen, np.where(column - partition - 1 >= 0, counts, -7))


# -- what is refused -------------------------------------------------------------------------------------------


def wide(*shape: int) -> Any:
    """Make a tile of int64, written by its halves, in a kernel."""
    return tile(*shape[:-1], 2 * shape[-1], dtype=INT32).view(INT64)


@rules(
    legal(nisa.scalar_load, src=lazily(nl.copy, Sbuf(1, 1), dtype=INT32)),
    broken("load of an unsigned integer", src=Sbuf(1, 1, dtype=nl.uint32))
    .says("operand 'src' must be a tensor of int32 or int64, got one of uint32; view it as nl.int32")
    .fixed(src=Sbuf(1, 1, dtype=nl.uint32).view(INT32)),
    broken("load of a float", src=Sbuf(1, 1)).says(
        "operand 'src' must be a tensor of int32 or int64, got one of float32; cast it to nl.int32 with "
        "nisa.tensor_copy"
    ),
    broken("load of one dimension", src=Hbm(1, dtype=INT32))
    .says(must("src", "have shape [1, 1]", "; reshape it to (1, 1)"))
    .fixed(src=Hbm(1, dtype=INT32).reshape((1, 1))),
    broken("load of several elements", src=Sbuf(1, 2, dtype=INT32))
    .says(must("src", "have shape [1, 1]", "; slice one element"))
    .fixed(src=Sbuf(1, 2, dtype=INT32)[:, 1:2]),
    broken("load from PSUM", src=Psum(1, 1, dtype=INT32))
    .says(must("src", f"be in {DMA_MEMORIES}", COPY_FIRST))
    .fixed(src=Sbuf(1, 1, dtype=INT32)),
    legal(nisa.scalar_store, dst=lazily(wide, 1, 1), value=lazily(scalar, 3, INT64)),
    broken("store of an integer", dst=Sbuf(1, 1, dtype=INT32), value=3)
    .says("operand 'value' must be an NkiScalar, got 3; nisa.memset writes a constant")
    .instead(lambda: nisa.memset(tile(1, 1, dtype=INT32), 3)),
    broken("store of a register", dst=Sbuf(1, 1, dtype=INT32), value=lazily(nisa.register_alloc, 3))
    .says("operand 'value' must be an NkiScalar, got VirtualRegister(3); nisa.register_store writes a register")
    .instead(lambda: nisa.register_store(tile(1, 1, dtype=INT32), nisa.register_alloc(3))),
    broken("store at another width", dst=Sbuf(1, 1, dtype=INT32)).says(
        must(
            "dst",
            "have the type of 'value', which is int64",
            "; store the scalar at its own width and convert it in memory",
        )
    ),
    legal(nisa.register_store, dst=Sbuf(1, 1, dtype=INT32), src=lazily(scalar, 3)),
    broken("a scalar for a register")
    .says(
        "operand 'src' must be a register of nisa.register_alloc, got NkiScalar(3, int32); nisa.scalar_store "
        "takes a scalar, and nl.fori_loop counts in a register if a bound is one"
    )
    .instead(lambda: nisa.scalar_store(tile(1, 1, dtype=INT32), scalar(3))),
    Rule(
        "64 bits on chip",
        lambda: nisa.tensor_copy(tile(2, 1), tile(2, 4).select(1, scalar(3, INT64))),
        "NkiTensor.select on tensor [2, 4] float32 in sbuf: on chip the scalar offset must be an int32, got "
        "NkiScalar(3, int64); nisa.scalar_load it from a tensor of int32",
        lambda: nisa.tensor_copy(tile(2, 1), tile(2, 4).select(1, scalar(3))),
    ),
    legal(nisa.iota, dst=Sbuf(1, 4, dtype=INT32), pattern=[[1, 4]], offset=lazily(scalar, 3)),
    broken("64 bits as offset of iota", offset=lazily(scalar, 3, INT64)).says(
        "offset must be an int32, got NkiScalar(3, int64); nisa.scalar_load it from a tensor of int32"
    ),
    Rule(
        "a tile of 64 bits as an index",
        lambda: nisa.dma_copy(tile(1, 2), nl.zeros((4, 2), nl.float32, nl.hbm).select(0, wide(1, 1))),
        "NkiTensor.select on tensor [4, 2] float32 in private_hbm: the scalar offset must have 32 bits or fewer, got "
        "tensor [1, 1] int64 in sbuf; nisa.scalar_load takes one of 64",
        lambda: nisa.dma_copy(tile(1, 2), nl.zeros((4, 2), nl.float32, nl.hbm).select(0, nisa.scalar_load(wide(1, 1)))),
    ),
    legal(nisa.tensor_copy, dst=lazily(wide, 1, 2), src=lazily(wide, 1, 2)),
    broken("computing with 64 bits")
    .says(
        "operand 'dst': engines have 32 bits for an element and take no int64, got tensor [1, 2] int64 in sbuf; "
        "nisa.dma_copy copies it, nisa.scalar_load reads one element, and viewed as nl.int32 its halves are tiles"
    )
    .instead(lambda: nisa.dma_copy(wide(1, 2), wide(1, 2))),
    legal(nisa.dma_copy, dst=Sbuf(1, 2, dtype=INT32), src=lazily(wide, 1, 2).view(INT32)[:, ::2]),
    broken("a cast of 64 bits", src=lazily(wide, 1, 2)).says(
        "int64 is copied and never cast: 'dst' and 'src' must have one type, got {dst} and tensor [1, 2] int64 "
        "in sbuf; view it as nl.int32, of whose pairs the first one is the low half"
    ),
    legal(nl.zeros, shape=(1, 2), dtype=INT64, buffer=nl.hbm),
    broken("a constant of 64 bits")
    .says(
        "no instruction writes a constant into int64, got tensor [1, 2] int64 in private_hbm; fill a tensor of "
        "nl.int32 with twice as many columns and view it as nl.int64"
    )
    .instead(lambda: nl.zeros((1, 4), INT32, nl.hbm).view(INT64)),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)


# -- int64 in memory -------------------------------------------------------------------------------------------


def test_int64_comes_in_and_goes_out_bit_by_bit() -> None:
    def kernel(inputs: Any) -> Any:
        staged, result = nl.ndarray(inputs.shape, inputs.dtype), nl.ndarray(inputs.shape, inputs.dtype, nl.shared_hbm)
        nisa.dma_copy(staged, inputs)
        nisa.dma_copy(result[:, 1:], staged[:, :2])
        nisa.dma_copy(result[:, :1], staged[:, 2:])
        return result

    array = np.array([[2**53 + 1, -(2**62) - 1, 3], [4, 5, -6]], np.int64)
    np.testing.assert_array_equal(launch(kernel, array), np.roll(array, 1, axis=1), strict=True)


def test_the_low_halves_are_int32() -> None:
    def kernel(inputs: Any) -> Any:
        low = nl.ndarray(inputs.shape, INT32)
        nisa.dma_copy(low, inputs.view(INT32)[:, ::2])
        return store(low)

    array = np.array([[7, -8, 2**32 + 9]], np.int64)
    assert launch(kernel, array).tolist() == [[7, -8, 9]]
