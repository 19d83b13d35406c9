# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tensors of the packed x4 types: made, moved, viewed, passed in and out, and with what engines do not compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator.machine.issue import REGISTRY
from nkilib.simulator.terms.dtypes import COPYABLE, MOVABLE

from ..frame import run
from ..kernels import Body, execute, load, refusal, store, tile
from ..made import Made, Sbuf
from ..rules import Broken, Legal, Rule, broken, check_rule, legal, rules

E4M3, E5M2, E2M1 = nl.float8_e4m3fn_x4, nl.float8_e5m2_x4, nl.float4_e2m1fn_x4
PACKED = [E4M3, E5M2, E2M1]
# The integer type of a word of each.
WORDS = {"float8_e4m3fn_x4": nl.uint32, "float8_e5m2_x4": nl.uint32, "float4_e2m1fn_x4": nl.uint16}


def bits(dtype: Any, *shape: int) -> Any:
    """Random bits, NaN and infinity among them, in the unsigned type of a word."""
    return np.random.default_rng(0).integers(0, 1 << 8 * dtype.itemsize, shape, dtype=np.uint64).astype(dtype.numpy)


def moved(dtype: Any, move: Body, **options: Any) -> Any:
    """The words of `move(tile)`, a copy of a packed tile with `bits(dtype, 4, 6)`."""
    return run(lambda words: store(move(load(words.view(dtype)))), bits(dtype, 4, 6), **options)


def copied(source: Any, buffer: Any = nl.sbuf, **settings: Any) -> Any:
    """Copy by an engine into a tile that held zeros before, in a kernel."""
    made = tile(*source.shape, dtype=source.dtype, buffer=buffer)
    nisa.tensor_copy(made, source, **settings)
    return made


# -- moving bits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precise_fp", [True, False])
@pytest.mark.parametrize("dtype", PACKED)
def test_dma_copy_moves_the_bits(dtype: Any, precise_fp: bool) -> None:
    """This holds with NKI_PRECISE_FP=0 as well: packed types are not widened."""
    np.testing.assert_array_equal(moved(dtype, load, precise_fp=precise_fp), bits(dtype, 4, 6), strict=True)


@pytest.mark.parametrize("engine", [nisa.engine.vector, nisa.engine.scalar, nisa.engine.gpsimd])
@pytest.mark.parametrize("dtype", PACKED)
def test_tensor_copy_moves_the_bits(dtype: Any, engine: Any) -> None:
    words = moved(dtype, lambda source: copied(source, engine=engine))
    np.testing.assert_array_equal(words, bits(dtype, 4, 6), strict=True)


@pytest.mark.parametrize("dtype", PACKED)
def test_through_psum(dtype: Any) -> None:
    words = moved(dtype, lambda source: copied(copied(source, buffer=nl.psum)))
    np.testing.assert_array_equal(words, bits(dtype, 4, 6), strict=True)


@pytest.mark.parametrize(
    ("engine", "buffer"), [(nisa.engine.tensor, nl.psum), (nisa.engine.vector, nl.sbuf)], ids=["tensor", "vector"]
)
@pytest.mark.parametrize("dtype", PACKED)
def test_nc_transpose_moves_the_bits(dtype: Any, engine: Any, buffer: Any) -> None:
    array = bits(dtype, 4, 6)

    def kernel(words: Any) -> Any:
        transposed = nl.ndarray((6, 4), dtype, buffer)
        nisa.nc_transpose(transposed, load(words.view(dtype)), engine=engine)
        return store(transposed)

    assert run(kernel, array, target="trn3").tolist() == array.T.tolist()


def test_gather_of_packed_rows() -> None:
    array = bits(E4M3, 8, 3)

    def kernel(words: Any, index: Any) -> Any:
        rows = nl.ndarray((4, 3), E4M3)
        nisa.dma_copy(rows, words.view(E4M3).vector_select(0, load(index)))
        return store(rows)

    result = run(kernel, array, np.array([[6], [0], [7], [6]], np.int32))
    assert result.tolist() == array[[6, 0, 7, 6]].tolist()


@pytest.mark.parametrize("value", [0, 0.0, -0.0, False])
@pytest.mark.parametrize("dtype", PACKED)
def test_memset_and_zeros_fill_with_zero_bits(dtype: Any, value: Any) -> None:
    def kernel() -> Any:
        filled = load(nl.zeros((2, 3), dtype, nl.shared_hbm))
        nisa.memset(filled[:, 1:], value)
        return store(filled)

    assert run(kernel).tolist() == [[0] * 3] * 2


# -- views and arguments ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "element"), [(E4M3, ml_dtypes.float8_e4m3fn), (E5M2, ml_dtypes.float8_e5m2)])
def test_the_elements_of_a_word_lie_in_order(dtype: Any, element: Any) -> None:
    """A float8 tensor of 4 N elements is a packed one of N words, and the other way round; both cover one memory."""
    array = np.arange(2 * 8).reshape(2, 8).astype(element)

    def kernel(elements: Any) -> Any:
        words = load(elements).view(dtype)
        assert (words.shape, words.dtype) == ((2, 2), dtype)
        return store(copied(words[:, 1:]).view(elements.dtype))

    assert run(kernel, array).tolist() == array[:, 4:].tolist()


def test_bytes_of_fp4_words() -> None:
    """The documentation's tutorial: FP4 comes in as uint8, two elements a byte, and is viewed by an access pattern."""
    import torch

    array = np.array([[0x21, 0x43, 0x65, 0x87], [0xA9, 0xCB, 0xED, 0x0F]], np.uint8)

    def kernel(data: Any) -> Any:
        return store(load(data.ap([[2, 2], [1, 2]], offset=0, dtype=E2M1)))

    expected = [[0x4321, 0x8765], [0xCBA9, 0x0FED]]
    assert run(kernel, array).tolist() == expected
    from_torch = run(kernel, torch.from_numpy(array))
    assert from_torch.dtype == torch.uint16
    assert from_torch.tolist() == expected


def test_an_access_pattern_of_words_on_a_tile_of_elements() -> None:
    """Strides, counts and offset in words, as public kernels view float8 tiles."""
    array = bits(nl.uint8, 4, 24)

    def kernel(data: Any) -> Any:
        elements = load(data.view(nl.float8_e4m3fn))
        return store(copied(elements.ap([[6, 4], [2, 2]], offset=1, dtype=E4M3)))

    assert run(kernel, array).tolist() == array.view(np.uint32)[:, [1, 3]].tolist()


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", PACKED)
def test_words_come_in_and_go_out_as_unsigned_integers(dtype: Any, library: str) -> None:
    """An input that the kernel writes through a packed view is updated in place."""
    inputs = bits(dtype, 2, 3)
    if library == "torch":
        import torch

        inputs = torch.from_numpy(inputs)
    before = inputs.tolist()

    def kernel(words: Any) -> Any:
        packed = words.view(dtype)
        result = store(load(packed))
        nisa.dma_copy(packed[0:1], packed[1:2])
        return result

    result = run(kernel, inputs)
    assert type(result) is type(inputs) and result.dtype == inputs.dtype
    assert result.tolist() == before
    assert inputs.tolist() == [before[1], before[1]]


@pytest.mark.parametrize("dtype", PACKED)
def test_signed_words(dtype: Any) -> None:
    """Torch users have had int32 and int16 for longer."""
    array = bits(dtype, 2, 3)
    signed = array.view(f"i{dtype.itemsize}")
    assert run(lambda words: store(load(words.view(dtype))), signed).tolist() == array.tolist()


def test_a_size_in_bytes_counts_words() -> None:
    def kernel() -> None:
        nl.ndarray((128, 4096), E4M3, nl.psum)

    def too_large() -> None:
        nl.ndarray((128, 4097), E4M3, nl.psum)

    execute(kernel)
    assert "tensor [128, 4097] float8_e4m3fn_x4 in psum: 16388 bytes a partition" in refusal(too_large)


# -- unwritten words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "word"), [(E4M3, 0x7F7F7F7F), (E5M2, 0x7E7E7E7E), (E2M1, 0x4444)])
def test_unwritten_words_read_as_four_nans_or_fours(dtype: Any, word: int) -> None:
    """FP4 has no NaN; its elements read as the 4 of integers, which is 2.0."""

    def kernel() -> Any:
        words = nl.ndarray((2, 3), dtype)
        nisa.memset(words[:, 0:1], 0)
        return store(words)

    assert run(kernel, uninitialized="nan").tolist() == [[0, word, word]] * 2
    if dtype != E2M1:
        element = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}[dtype]
        assert np.isnan(np.array([word], np.uint32).view(element).astype(np.float32)).all()


def test_a_read_of_unwritten_words_is_an_error_when_asked_for() -> None:
    def kernel() -> None:
        words = nl.ndarray((2, 3), E4M3)
        nisa.memset(words.view(nl.uint8)[:, 0:11], 0)
        nisa.tensor_copy(tile(2, 3, dtype=E4M3), words)

    assert refusal(kernel, error=nkilib.simulator.UninitializedReadError) == (
        "nisa.tensor_copy: operand 'src': 2 of the 6 elements of tensor [2, 3] float8_e4m3fn_x4 in sbuf were never "
        "written"
    )


# -- what is refused -------------------------------------------------------------------------------------------------


def no_result(tensor: Any) -> None:
    """A kernel returns tensors in HBM only."""


ONLY_ZERO = "value must be 0 for the packed type {}, got 1; load other values with nisa.dma_copy"
NO_CAST = (
    "packed types are copied bit by bit and never cast: 'dst' and 'src' must have one type, got {dst} and {src}; view "
    "one as the type of the other"
)


def words(dtype: Any, value: Any = 0) -> Made:
    return Sbuf(2, 3, dtype=dtype, value=value)


def without_casts(copy: Any) -> list[Legal | Broken]:
    """The rules of a copy that does not cast."""
    pairs = ((E4M3, nl.uint32), (nl.uint32, E4M3), (E4M3, E5M2), (nl.float32, E2M1))
    return [
        legal(copy, dst=words(E4M3, None), src=words(E4M3)),
        *(
            broken(f"{copy.__name__} {src} to {dst}", dst=words(dst, None), src=words(src))
            .says(NO_CAST)
            .fixed(src=words(dst))
            for dst, src in pairs
        ),
    ]


@rules(
    legal(nisa.memset, dst=words(E4M3, None), value=0),
    *(
        broken(f"memset {dtype}", dst=words(dtype, None), value=1).says(ONLY_ZERO.format(dtype)).fixed(value=0)
        for dtype in PACKED
    ),
    legal(nl.ones, shape=(2, 3), dtype=nl.float32),
    broken("nl.ones", dtype=E4M3).says(ONLY_ZERO.format("float8_e4m3fn_x4")).instead(lambda: nl.zeros((2, 3), E4M3)),
    *without_casts(nisa.dma_copy),
    *without_casts(nisa.tensor_copy),
    Rule(
        "packed views need dense words",
        lambda: no_result(tile(2, 6, dtype=nl.uint8).view(E4M3)),
        "NkiTensor.view: the 6 bytes of the last dimension of tensor [2, 6] uint8 in sbuf and the strides before it "
        "must be multiples of the 4 bytes of float8_e4m3fn_x4",
        lambda: no_result(tile(2, 8, dtype=nl.uint8).view(E4M3)),
    ),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)


# Kernels of one instruction on tiles [32, 32] of a type, and the operand that is checked first.
COMPUTE: dict[str, tuple[str, Callable[[Any], Body]]] = {
    "tensor_tensor": ("dst", lambda x: lambda: nisa.tensor_tensor(x(), x(), x(), nl.add)),
    "tensor_scalar": ("dst", lambda x: lambda: nisa.tensor_scalar(x(), x(), nl.add, 1)),
    "scalar_tensor_tensor": ("dst", lambda x: lambda: nisa.scalar_tensor_tensor(x(), x(), nl.add, 1, nl.add, x())),
    "tensor_reduce": ("data", lambda x: lambda: nisa.tensor_reduce(tile(32, 1), nl.add, x(), 1)),
    "reciprocal": ("dst", lambda x: lambda: nisa.reciprocal(x(), x())),
    "activation": ("data", lambda x: lambda: nisa.activation(tile(32, 32), nl.exp, x())),
}


@pytest.mark.parametrize("dtype", PACKED)
@pytest.mark.parametrize("name", COMPUTE)
def test_engines_do_not_compute_with_packed_types(name: str, dtype: Any) -> None:
    operand, kernel = COMPUTE[name]
    assert refusal(kernel(lambda: tile(32, 32, dtype=dtype)), "trn3") == (
        f"nisa.{name}: operand {operand!r}: engines compute with {dtype} in nisa.nc_matmul_mx only, got tensor "
        f"[32, 32] {dtype} in sbuf; view it as nl.{WORDS[str(dtype)]} to work on its bits"
    )
    execute(kernel(lambda: tile(32, 32)), "trn3")


def test_only_mx_instructions_name_packed_types() -> None:
    """All others take them along with every other type, as bits, or not at all."""
    names = {
        definition.name
        for definition in REGISTRY.values()
        for operand in definition.operands
        if operand.dtypes not in (None, MOVABLE, COPYABLE) and not operand.dtypes.isdisjoint(PACKED)
    }
    assert names == {"quantize_mx", "nc_matmul_mx"}


def test_the_view_that_the_refusal_proposes() -> None:
    array = bits(E2M1, 2, 3)

    def kernel(words: Any) -> Any:
        packed = load(words.view(E2M1))
        nisa.tensor_scalar(packed.view(nl.uint16), packed.view(nl.uint16), nl.bitwise_and, 0x00FF)
        return store(packed)

    assert run(kernel, array).tolist() == (array & 0x00FF).tolist()


def test_an_index_is_no_packed_tensor() -> None:
    def kernel() -> None:
        nl.ndarray((8, 4), nl.float32, nl.hbm).vector_select(0, tile(2, 1, dtype=E4M3))

    assert "the vector offset must be an integer tensor in SBUF, got tensor [2, 1] float8_e4m3fn_x4" in refusal(kernel)


@pytest.mark.parametrize("dtype", PACKED)
def test_a_barrier_waits_for_packed_data(dtype: Any) -> None:
    def kernel(words: Any) -> Any:
        result = nl.ndarray(words.shape, dtype, nl.shared_hbm)
        half = nl.ds(nl.program_id(0), 1)
        nisa.dma_copy(result[half], words.view(dtype)[half])
        nisa.core_barrier(result, (0, 1))
        return result

    array = bits(dtype, 2, 3)
    assert nki.jit(kernel)[2](array).tolist() == array.tolist()
