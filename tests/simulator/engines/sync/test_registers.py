# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`register_alloc`, `register_move`, `register_load`, `register_store`: scalars between registers and memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import UninitializedReadError

from ...kernels import Result, Tile, execute, refusal, run, store, tile
from ...made import Made, Psum, Sbuf, lazily
from ...rules import Rule, broken, check_rule, legal, rules
from ...sentences import COPY_FIRST, DMA_MEMORIES, must

INT32 = nl.int32


def filled_hbm(*shape: int, dtype: Any = INT32, value: int = 0) -> Any:
    """Make a tensor in HBM filled with `value`, in a kernel."""
    return store(tile(*shape, dtype=dtype, value=value))


def through_a_register(array: Any, dtype: Any = None) -> Any:
    """The value that a register loaded from a [1, 1] tile stores to another one of type `dtype`."""
    kept = Tile(array)

    def body(dst: Any, src: Any) -> None:
        register = nisa.register_alloc()
        nisa.register_load(register, src)
        nisa.register_store(dst, register)

    return run(body, [kept], Result((1, 1), dtype or str(array.dtype)))[0, 0]


def test_alloc_with_a_value() -> None:
    def body(dst: Any) -> None:
        nisa.register_store(dst[:, 0:1], nisa.register_alloc(-7))
        nisa.register_store(dst[:, 1:2], nisa.register_alloc(x=2**32 - 1))

    assert run(body, [], Result((1, 2), INT32)).tolist() == [[-7, -1]]


@pytest.mark.parametrize("allocate", [lambda: nisa.register_alloc(), lambda: nisa.register_alloc(None)])
def test_alloc_without_a_value_leaves_the_register_unset(allocate: Any) -> None:
    def body() -> None:
        nisa.register_store(tile(1, 1, dtype=INT32), allocate())

    assert refusal(body, error=UninitializedReadError) == (
        "nisa.register_store: operand 'src': the register was never set; give nisa.register_alloc a value, or "
        "nisa.register_load one first"
    )


def test_each_register_is_its_own() -> None:
    def body(dst: Any) -> None:
        first, second = nisa.register_alloc(1), nisa.register_alloc(2)
        nisa.register_move(first, 3)
        nisa.register_store(dst[:, 0:1], first)
        nisa.register_store(dst[:, 1:2], second)

    assert run(body, [], Result((1, 2), INT32)).tolist() == [[3, 2]]


def test_move_copies_the_value_of_another_register_as_it_is_now() -> None:
    def body(dst: Any) -> None:
        first, second = nisa.register_alloc(10), nisa.register_alloc()
        nisa.register_move(second, first)
        nisa.register_move(dst=first, src=-4)
        nisa.register_store(dst[:, 0:1], first)
        nisa.register_store(dst[:, 1:2], second)

    assert run(body, [], Result((1, 2), INT32)).tolist() == [[-4, 10]]


@given(st.integers(-(2**31), 2**32 - 1))
def test_a_register_holds_the_low_32_bits_of_an_immediate(value: int) -> None:
    results = run(
        lambda signed, unsigned: [nisa.register_store(dst, nisa.register_alloc(value)) for dst in (signed, unsigned)],
        [],
        Result((1, 1), INT32),
        Result((1, 1), nl.uint32),
    )
    bits = value % 2**32
    assert results[1][0, 0] == bits
    assert results[0][0, 0] == (bits - 2**32 if bits >= 2**31 else bits)


@pytest.mark.parametrize(
    "value",
    [
        np.int8(-128),
        np.uint8(255),
        np.int16(-32768),
        np.uint16(65535),
        np.int32(-(2**31)),
        np.int32(16777217),
        np.uint32(2**32 - 1),
        np.float16(-0.1),
        ml_dtypes.bfloat16(3e38),
        ml_dtypes.float8_e4m3(-0.0),
        ml_dtypes.float8_e8m0fnu(2.0**-127),
        np.float32(-0.1),
        np.float32(3e38),
        np.float32(np.inf),
    ],
    ids=repr,
)
def test_load_and_store_keep_every_value_of_a_type(value: Any) -> None:
    """Also 16777217 and -0.1, which would not survive a cast through float32 or an integer."""
    assert through_a_register(np.array([[value]])) == value


def test_nan_passes_through_a_register() -> None:
    assert np.isnan(through_a_register(np.full((1, 1), np.nan, np.float32)))


@pytest.mark.parametrize(
    ("value", "dtype", "stored"),
    [
        (np.int8(-2), INT32, -2),
        (np.uint8(254), INT32, 254),
        (np.uint16(65534), INT32, 65534),
        (np.uint32(2**32 - 2), INT32, -2),
        (np.int32(-2), nl.uint32, 2**32 - 2),
        (np.int32(0x12345), nl.int16, 0x2345),
        (np.int32(0x1FF), nl.uint8, 0xFF),
        (np.int32(0x180), nl.int8, -128),
        (np.int8(-2), nl.uint16, 65534),
    ],
)
def test_unlike_integer_types_are_extended_on_load_and_cut_on_store(value: Any, dtype: Any, stored: int) -> None:
    assert through_a_register(np.array([[value]]), dtype) == stored


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_memory_in_hbm_has_one_element_in_one_or_two_dimensions(shape: tuple[int, ...]) -> None:
    def kernel() -> Any:
        target, register = filled_hbm(1, 1), nisa.register_alloc()
        nisa.register_load(register, filled_hbm(1, 1, value=6).reshape(shape))
        nisa.register_store(target.reshape(shape), register)
        return target

    assert execute(kernel).tolist() == [[6]]


def test_an_element_of_a_larger_tile_in_any_partition() -> None:
    def body(dst: Any, data: Any) -> None:
        nisa.memset(dst, 0)
        register = nisa.register_alloc()
        nisa.register_load(register, data[5:6, 2:3])
        nisa.register_store(dst[3:4, 1:2], register)

    data = np.arange(24, dtype=np.int32).reshape(6, 4)
    expected = np.zeros((4, 2), np.int32)
    expected[3, 1] = data[5, 2]
    np.testing.assert_array_equal(run(body, [data], Result((4, 2), INT32)), expected)


def test_store_writes_its_element_only_and_marks_it_written() -> None:
    def body() -> Any:
        made = nl.ndarray((1, 4), INT32, nl.sbuf)
        nisa.register_store(made[:, 1:2], nisa.register_alloc(9))
        mask = made.storage.written.mask_of(made.layout, 4)
        return [bool(unit) for unit in mask.reshape(-1)]

    assert execute(body) == [False, True, False, False]


def test_load_sees_the_memory_as_it_is_then() -> None:
    def body(dst: Any) -> None:
        source, register = tile(1, 1, dtype=INT32, value=1), nisa.register_alloc()
        nisa.register_load(register, source)
        nisa.memset(source, 2)
        nisa.register_store(dst, register)

    assert run(body, [], Result((1, 1), INT32)).tolist() == [[1]]


def test_the_documented_countdown() -> None:
    """A register goes to memory, is counted down there and comes back, until it holds 0."""

    def body(dst: Any) -> None:
        count, one, turns = tile(1, 1, dtype=INT32), tile(1, 1, dtype=INT32, value=1), tile(1, 1, dtype=INT32)

        def countdown(register: Any) -> Any:
            nisa.register_store(count, register)
            nisa.tensor_tensor(count, count, one, nl.subtract)
            nisa.tensor_tensor(turns, turns, one, nl.add)
            nisa.register_load(register, count)
            return register

        nl.while_loop(nisa.register_alloc(5), countdown)
        nisa.tensor_copy(dst, turns)

    assert run(body, [], Result((1, 1), INT32)).tolist() == [[5]]


def test_each_core_has_its_own_registers() -> None:
    def kernel() -> Any:
        result = nl.ndarray((2,), INT32, nl.shared_hbm)
        core = nl.program_id()
        nisa.register_store(result[core : core + 1], nisa.register_alloc(10 + core))
        return result

    assert execute(kernel, cores=2).tolist() == [10, 11]


def test_moves_between_memory_and_registers_can_be_ordered_and_are_recorded() -> None:
    def body() -> None:
        register = nisa.register_alloc(1)
        first = nisa.register_store(tile(1, 1, dtype=INT32), register)
        second = nisa.register_move(register, 2)
        assert (
            second.depends_on(first, kind=nisa.dependency.runtime) is second and repr(first) == "<nisa.register_store>"
        )

    with nkilib.simulator.recording() as record:
        execute(body)
    assert record.instruction_counts == {"memset": 1, "register_store": 1, "register_move": 1}
    assert record.instructions_per_engine["sync"] == 2


@pytest.mark.parametrize("name", ["register_move", "register_load", "register_store"])
def test_they_take_no_name(name: str) -> None:
    instruction = getattr(nisa, name)
    with pytest.raises(TypeError, match=f"nisa.{name}: got an unexpected keyword argument 'name'"):
        instruction(nisa.VirtualRegister(), 1, name="first")
    with pytest.raises(TypeError, match=f"nisa.{name}: too many positional arguments"):
        instruction(nisa.VirtualRegister(), 1, "first")


def test_alloc_needs_a_kernel() -> None:
    with pytest.raises(nisa.NkiValidationError, match=r"nisa\.register_alloc works inside a kernel only"):
        nisa.register_alloc(1)


def float_register() -> Any:
    register = nisa.register_alloc()
    nisa.register_load(register, tile(1, 1, value=1.5))
    return register


def register(*value: int) -> Made:
    """A register of these values, one or none."""
    return lazily(nisa.register_alloc, *value)


FLOAT_REGISTER = lazily(float_register)
CASTS_NOTHING = (
    "operand 'dst': {} and casts nothing, got {{dst}}; store it to a tensor of its own type and cast that with "
    "nisa.tensor_copy"
)


@rules(
    legal(nisa.register_alloc, x=2**32 - 1),
    broken("bits", x=2**32).says("x must be an integer of 32 bits, got 4294967296"),
    broken("alloc from a tensor", x=Sbuf(1, 1, dtype=INT32))
    .says("x must be an integer of 32 bits, got {x}; nisa.register_load takes it from a tensor")
    .instead(lambda: nisa.register_load(nisa.register_alloc(), tile(1, 1, dtype=INT32))),
    broken("alloc from a register", x=register(3))
    .says("x must be an integer of 32 bits, got VirtualRegister(3); nisa.register_move takes it from a register")
    .instead(lambda: nisa.register_move(nisa.register_alloc(), nisa.register_alloc(3))),
    legal(nisa.register_move, dst=register(), src=register(0)),
    broken("immediate", src=0.5).says("src must be an integer of 32 bits, got 0.5").fixed(src=5),
    broken("move from an unset register", error=UninitializedReadError, src=register()).says(
        "operand 'src': the register was never set; give nisa.register_alloc a value, or nisa.register_load one first"
    ),
    broken("move into a number", dst=3, src=register(3))
    .says("operand 'dst' must be a register of nisa.register_alloc, got 3")
    .fixed(dst=register(3), src=3),
    legal(nisa.register_load, dst=register(), src=Sbuf(1, 1, dtype=INT32)),
    broken("load into a tensor", dst=Sbuf(1, 1, dtype=INT32)).says(must("dst", "be a register of nisa.register_alloc")),
    legal(nisa.register_load, dst=register(), src=Sbuf(1, 2, dtype=INT32)[:, 1:2]),
    broken("load from a register", src=register(1))
    .says("operand 'src' must be a tensor, got VirtualRegister(1)")
    .instead(lambda: nisa.register_move(nisa.register_alloc(), nisa.register_alloc(1))),
    broken("load from PSUM", src=Psum(1, 1, dtype=INT32))
    .says(must("src", f"be in {DMA_MEMORIES}", COPY_FIRST))
    .fixed(src=lazily(filled_hbm, 1, 1)),
    broken("load of two elements", src=Sbuf(1, 2, dtype=INT32)).says(must("src", "have shape [1] or [1, 1]")),
    legal(nisa.register_load, dst=register(), src=Sbuf(1, 1, 1, dtype=INT32).reshape((1, 1))),
    broken("load of three dimensions", src=Sbuf(1, 1, 1, dtype=INT32)).says(must("src", "have shape [1] or [1, 1]")),
    broken("load of a packed type", src=Sbuf(1, 1, dtype=nl.float8_e5m2_x4))
    .says(
        "operand 'src': engines compute with float8_e5m2_x4 in nisa.nc_matmul_mx only, got {src}; view it as "
        "nl.uint32 to work on its bits"
    )
    .fixed(src=Sbuf(1, 1, dtype=nl.float8_e5m2)),
    broken("load of 64 bits", src=Sbuf(1, 1, dtype=nl.int64, value=None))
    .says(
        "operand 'src': engines have 32 bits for an element and take no int64, got {src}; nisa.dma_copy copies "
        "it, nisa.scalar_load reads one element, and viewed as nl.int32 its halves are tiles"
    )
    .instead(lambda: nisa.scalar_load(tile(1, 2, dtype=INT32).view(nl.int64))),
    broken("load of unwritten memory", error=UninitializedReadError, src=Sbuf(1, 1, dtype=INT32, value=None))
    .says("operand 'src': 1 of the 1 elements of {src} were never written")
    .fixed(src=Sbuf(1, 1, dtype=INT32)),
    legal(nisa.register_store, dst=Sbuf(1, 1, dtype=INT32), src=register(3)),
    broken("store of a float at another width", dst=Sbuf(1, 1, dtype=nl.bfloat16), src=FLOAT_REGISTER)
    .says(CASTS_NOTHING.format("VirtualRegister(1.5) holds a float32"))
    .fixed(dst=Sbuf(1, 1)),
    broken("store of a number", src=3).says("operand 'src' must be a register of nisa.register_alloc, got 3"),
    broken("store to several partitions", dst=Sbuf(2, 1, dtype=INT32))
    .says(must("dst", "have shape [1] or [1, 1]"))
    .fixed(dst=Sbuf(2, 1, dtype=INT32)[1:2]),
    broken("store to PSUM", dst=Psum(1, 1, dtype=INT32)).says(must("dst", f"be in {DMA_MEMORIES}")),
    broken("store of an integer to a float tensor", dst=Sbuf(1, 1)).says(
        CASTS_NOTHING.format("VirtualRegister(3) holds an integer")
    ),
    broken("store of a float to an integer tensor", src=FLOAT_REGISTER)
    .says(CASTS_NOTHING.format("VirtualRegister(1.5) holds a float32"))
    .fixed(dst=Sbuf(1, 1)),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)


def run_on_two_cores(first: Any, second: Any, is_ordered: bool = False) -> None:
    """The cores call `first` and `second` with a tensor in shared HBM, with a barrier between the two if asked."""

    def kernel(shared: Any) -> Any:
        if nl.program_id(0) == 0:
            first(shared)
        if is_ordered:
            nisa.core_barrier(shared, (0, 1))
        if nl.program_id(0) == 1:
            second(shared)
        return shared

    nki.jit(kernel)[2](np.zeros((1, 1), np.int32))


@pytest.mark.parametrize(
    "second",
    [
        lambda shared: nisa.register_load(nisa.register_alloc(), shared),
        lambda shared: nisa.register_store(shared, nisa.register_alloc(4)),
    ],
    ids=["load", "store"],
)
@pytest.mark.parametrize(
    "first",
    [
        lambda shared: nisa.dma_copy(shared, tile(1, 1, dtype=INT32, value=3)),
        lambda shared: nisa.register_store(shared, nisa.register_alloc(3)),
    ],
    ids=["dma_copy", "register_store"],
)
def test_registers_race_with_the_other_core_unless_a_barrier_orders_them(first: Any, second: Any) -> None:
    with pytest.raises(nkilib.simulator.RaceError) as caught:
        run_on_two_cores(first, second)
    assert "race on tensor 'shared' [1, 1] int32 in shared_hbm: core 0 writes element [0, 0] at " in str(caught.value)
    run_on_two_cores(first, second, is_ordered=True)


def test_hbm_bytes() -> None:
    """The bytes are those of one element, and none for a tile in SBUF."""

    def kernel() -> Any:
        register, made = nisa.register_alloc(), nl.ndarray((1, 1), nl.int16, nl.shared_hbm)
        nisa.register_load(register, tile(1, 1, dtype=INT32, value=-3))
        nisa.register_store(made, register)
        nisa.register_load(register, made)
        nisa.register_load(register, made)
        return made

    with nkilib.simulator.recording() as record:
        assert execute(kernel).tolist() == [[-3]]
    assert (record.hbm_written_bytes, record.hbm_read_bytes) == (2, 4)


def test_in_wide_storage_a_bfloat16_stays_one() -> None:
    """Memory with `NKI_PRECISE_FP=0` is float32, and the register knows what the type was."""
    with nkilib.simulator.using(precise_fp=False):
        assert through_a_register(np.full((1, 1), 2.5, ml_dtypes.bfloat16), "bfloat16") == 2.5
