# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches without data: which checks still hold, what comes back, and what is refused because it needs values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import CapacityError, NkiValidationError, Profile, RaceError, Spec, profile, spec, using

FP32 = nl.float32
NEEDS_DATA = "shapes and types only; pass arrays"


def modelled(body: Callable[..., Any], *args: Any, cores: int = 1) -> Profile:
    return profile(nki.jit(body)[cores], *(args or (spec((128, 64), FP32),)))


def refusal(body: Callable[..., Any], *args: Any, cores: int = 1) -> str:
    with pytest.raises(NkiValidationError) as caught:
        modelled(body, *args, cores=cores)
    return str(caught.value)


def unknown_register() -> Any:
    """Make a register in a kernel that is loaded from a tile; before that it holds 0."""
    register, tile = nisa.register_alloc(0), nl.ndarray((1, 1), nl.int32)
    nisa.register_load(register, tile)
    return register


def unknown_scalar() -> Any:
    """Read a scalar from a tile, in a kernel."""
    return nisa.scalar_load(nl.ndarray((1, 1), nl.int32))


# What a spec is.


@pytest.mark.parametrize("dtype", [nl.bfloat16, "bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)])
def test_types_come_in_every_form(dtype: Any) -> None:
    assert spec([np.int64(3), 4], dtype) == Spec((3, 4), nl.bfloat16)


def test_wrong_shapes_and_types_are_refused() -> None:
    with pytest.raises(ValueError, match="sizes must not be negative"):
        spec((3, -1), FP32)
    with pytest.raises(TypeError):
        spec((3.0,), FP32)
    with pytest.raises(TypeError, match="dtype must be an NKI data type"):
        spec((3,), "complex64")


# What comes back.


def test_results_are_specs() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        result = nl.ndarray((4, 8), nl.bfloat16, nl.shared_hbm)
        return result, [x]

    assert kernel[2](spec((128, 64), FP32)) == (Spec((4, 8), nl.bfloat16), [Spec((128, 64), FP32)])


def test_a_result_on_chip_is_refused_as_ever() -> None:
    assert "a kernel returns tensors in HBM" in refusal(lambda x: nl.ndarray((4, 4), FP32))


def test_one_spec_makes_all_arguments_stand_for_their_shapes() -> None:
    array = np.ones((128, 64), np.float32)

    @nki.jit
    def kernel(x: Any, y: Any) -> Any:
        tile = nl.load(x)
        nl.store(y, nl.add(tile, tile))
        return y

    assert kernel(spec((128, 64), FP32), array) == Spec((128, 64), FP32)
    assert (array == 1).all()


def test_specs_inside_containers() -> None:
    @nki.jit
    def kernel(pair: Any) -> Any:
        return pair["a"][0]

    assert kernel({"a": [spec((2, 3), nl.int32)]}) == Spec((2, 3), nl.int32)


# What is checked, and what is not.


def unlike_sizes(x: Any) -> None:
    nisa.tensor_copy(nl.ndarray((128, 32), FP32), nl.load(x))


def wrong_engine(x: Any) -> None:
    nisa.memset(nl.ndarray((4, 4), FP32, nl.psum), 0, engine=nisa.engine.gpsimd)


def outside(x: Any) -> None:
    nl.load(x[0:129, :])


def no_number(x: Any) -> None:
    nl.full((4, 4), "1", FP32)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (unlike_sizes, "must have the same number of elements per partition"),
        (wrong_engine, "psum"),
        (outside, "129"),
        (no_number, "value must be a compile-time number"),
    ],
)
def test_shapes_and_places_are_checked(body: Callable[..., Any], words: str) -> None:
    message = refusal(body)
    assert words in message
    assert message.startswith(f"{__file__}:{body.__code__.co_firstlineno + 1}: ")


def test_capacity_is_checked() -> None:
    def body(_: Any) -> None:
        tiles = [nl.ndarray((128, 20000), FP32) for _ in range(3)]
        for tile in [*tiles, *tiles]:
            nisa.memset(tile, 0)

    with pytest.raises(CapacityError, match="sbuf overflows"):
        modelled(body)


def race(x: Any) -> None:
    tile = nl.ndarray((128, 64), FP32)
    nisa.iota(tile, [[1, 64]], offset=nl.program_id())
    nisa.dma_copy(x, tile)


def test_races_and_unwritten_elements_are_not_looked_for() -> None:
    with using(uninitialized="error"):
        with pytest.raises(RaceError):
            profile(nki.jit(race)[2], np.zeros((128, 64), np.float32))
        modelled(race, cores=2)
        modelled(lambda x: nisa.dma_copy(x, nl.ndarray((128, 64), FP32)) and None)


# Control flow.


def while_register(x: Any) -> None:
    nl.while_loop(unknown_register(), lambda r: r)


def loop_to_register(x: Any) -> None:
    nl.fori_loop(0, unknown_register(), lambda i: None)


def loop_to_scalar(x: Any) -> None:
    nl.fori_loop(0, 1 - 2 * unknown_scalar(), lambda i: None)


def moved_register(x: Any) -> None:
    register = nisa.register_alloc(1)
    nisa.register_move(register, unknown_register())
    nl.while_loop(register, lambda r: r)


def peek(x: Any) -> None:
    if nl.load(x).array[0, 0] > 0:
        nl.load(x)


@pytest.mark.parametrize("body", [while_register, loop_to_register, loop_to_scalar, moved_register, peek])
@pytest.mark.parametrize("cores", [1, 2])
def test_control_flow_that_depends_on_values_is_refused(body: Callable[..., Any], cores: int) -> None:
    """A register must not keep what it held before the load."""
    message = refusal(body, cores=cores)
    assert NEEDS_DATA in message
    assert message.startswith(f"{__file__}:")


def test_the_kernel_cannot_catch_that_values_are_missing() -> None:
    def body(x: Any) -> None:
        with contextlib.suppress(Exception):
            nl.load(x).array.sum()

    assert NEEDS_DATA in refusal(body)


def test_control_flow_by_shapes_and_known_registers_runs() -> None:
    def body(x: Any) -> None:
        if x.shape[0] == 128 and x is not None:
            nl.fori_loop(0, nisa.register_alloc(3), lambda i: nisa.dma_copy(nl.ndarray(x.shape, FP32), x) and None)

    assert modelled(body).instruction_counts["dma_copy"] == 3


def test_a_comparison_that_a_kernel_asserts_is_taken_to_hold() -> None:
    def body(x: Any) -> None:
        tile = nl.load(x)
        assert nl.equal(tile, tile)

    assert modelled(body).instruction_counts == {"dma_copy": 1, "tensor_tensor": 1}


def test_registers_and_scalars_are_stored_and_used_as_addresses() -> None:
    def body(x: Any) -> None:
        register = unknown_register()
        nisa.register_store(nl.ndarray((1, 1), nl.int32), register)
        tile = nl.ndarray((1, 64), FP32)
        nisa.dma_copy(tile, x.ap([[64, 1], [1, 64]], scalar_offset=register, indirect_dim=0))
        index = nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(tile, x.ap([[64, 1], [1, 64]], scalar_offset=index, indirect_dim=0))
        scalar = unknown_scalar() * 2
        nisa.scalar_store(index, scalar)
        nisa.dma_copy(tile, x[nl.ds(scalar, 1)])
        nisa.iota(nl.ndarray((1, 64), nl.int32), [[1, 64]], offset=scalar)

    assert modelled(body).hbm_read_bytes == 3 * 64 * 4


def test_a_tile_is_indexed_at_run_time() -> None:
    """Where nothing is known of the index, the instruction is checked and costed at one of the places."""

    def body(x: Any) -> None:
        tile, index = nl.load(x), nl.ndarray((1, 1), nl.int32)
        for at in (unknown_scalar(), unknown_register()):
            nisa.tensor_copy(nl.ndarray((128, 16), FP32), tile[:, nl.ds(at, 16)])
        nisa.tensor_copy(nl.ndarray((128, 1), FP32), tile.select(1, index))

    result = modelled(body)
    assert [event.cycles for event in result.instructions if event.name == "tensor_copy"] == [64.0] * 3


def test_vector_offsets() -> None:
    def body(x: Any) -> None:
        index = nl.ndarray((128, 1), nl.int32)
        nisa.dma_copy(nl.ndarray((128, 64), FP32), x.vector_select(0, index))

    assert modelled(body).hbm_read_bytes == 128 * 64 * 4


def test_tensor_indirection_of_trn3() -> None:
    def body(_: Any) -> None:
        tile, index = nl.ndarray((128, 64), FP32), nl.ndarray((128, 1), nl.uint32)
        nisa.tensor_copy(nl.ndarray((128, 16), FP32), tile.indirect(index, num_elem=16))

    with using(target="trn3"):
        result = modelled(body)
    assert result.instructions[0].operands["dst"] == ((128, 16), "float32")


def test_tensors_print_without_values(capsys: pytest.CaptureFixture[str]) -> None:
    def body(x: Any) -> None:
        tile = nl.load(x)
        print(tile)
        nl.device_print("tile", tile)

    modelled(body)
    assert capsys.readouterr().out.count("without values") == 2


def test_the_functions_of_the_language_take_the_same_time_with_and_without_data() -> None:
    def body(x: Any) -> Any:
        tile = nl.load(x)
        total = nl.sum(nl.exp(nl.subtract(tile, nl.max(tile, axis=1, keepdims=True))), axis=1, keepdims=True)
        shifted = nl.where(nl.greater(tile, 0.5), nl.rsqrt(nl.add(total, 1.0)), nl.zeros((128, 64), FP32))
        result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nl.store(result, nl.softmax(nl.multiply(shifted, nl.sigmoid(tile)), axis=1))
        return result

    array = np.random.default_rng(0).random((128, 64), np.float32)
    with_data = modelled(body, array)
    assert with_data == modelled(body, spec(array.shape, array.dtype))
    assert with_data.time_us > 5
