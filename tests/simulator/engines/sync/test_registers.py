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

from ...kernels import Result, Rule, Tile, check_rule, execute, refusal, rules, run, store, tile

INT32 = nl.int32


def filled_hbm(*shape: int, dtype: Any = INT32, value: int = 0) -> Any:
    """In a kernel: a tensor in HBM filled with `value`."""
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
        assert second.depends_on(first) is second and repr(first) == "<nisa.register_store>"

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


@rules(
    Rule(
        "bits",
        lambda: nisa.register_alloc(2**32),
        "nisa.register_alloc: x must be an integer of 32 bits, got 4294967296",
        lambda: nisa.register_alloc(2**32 - 1),
    ),
    Rule(
        "immediate",
        lambda: nisa.register_move(nisa.register_alloc(), 0.5),
        "nisa.register_move: src must be an integer of 32 bits, got 0.5",
        lambda: nisa.register_move(nisa.register_alloc(), 5),
    ),
    Rule(
        "alloc from a tensor",
        lambda: nisa.register_alloc(tile(1, 1, dtype=INT32)),
        "nisa.register_alloc: x must be an integer of 32 bits, got tensor [1, 1] int32 in sbuf; nisa.register_load "
        "takes it from a tensor",
        lambda: nisa.register_load(nisa.register_alloc(), tile(1, 1, dtype=INT32)),
    ),
    Rule(
        "alloc from a register",
        lambda: nisa.register_alloc(nisa.register_alloc(3)),
        "nisa.register_alloc: x must be an integer of 32 bits, got VirtualRegister(3); nisa.register_move takes it "
        "from a register",
        lambda: nisa.register_move(nisa.register_alloc(), nisa.register_alloc(3)),
    ),
    Rule(
        "move from an unset register",
        lambda: nisa.register_move(nisa.register_alloc(), nisa.register_alloc()),
        "nisa.register_move: operand 'src': the register was never set; give nisa.register_alloc a value, or "
        "nisa.register_load one first",
        lambda: nisa.register_move(nisa.register_alloc(), nisa.register_alloc(0)),
        error=UninitializedReadError,
    ),
    Rule(
        "move into a number",
        lambda: nisa.register_move(3, nisa.register_alloc(3)),
        "nisa.register_move: operand 'dst' must be a register of nisa.register_alloc, got 3",
        lambda: nisa.register_move(nisa.register_alloc(3), 3),
    ),
    Rule(
        "load into a tensor",
        lambda: nisa.register_load(tile(1, 1, dtype=INT32), tile(1, 1, dtype=INT32)),
        "nisa.register_load: operand 'dst' must be a register of nisa.register_alloc, got tensor [1, 1] int32 in sbuf",
        lambda: nisa.register_load(nisa.register_alloc(), tile(1, 1, dtype=INT32)),
    ),
    Rule(
        "load from a register",
        lambda: nisa.register_load(nisa.register_alloc(), nisa.register_alloc(1)),
        "nisa.register_load: operand 'src' must be a tensor, got VirtualRegister(1)",
        lambda: nisa.register_move(nisa.register_alloc(), nisa.register_alloc(1)),
    ),
    Rule(
        "load from PSUM",
        lambda: nisa.register_load(nisa.register_alloc(), tile(1, 1, dtype=INT32, buffer=nl.psum)),
        "nisa.register_load: operand 'src' must be in private_hbm or sbuf or shared_hbm, got tensor [1, 1] int32 in "
        "psum; copy it to sbuf first, with nisa.tensor_copy",
        lambda: nisa.register_load(nisa.register_alloc(), filled_hbm(1, 1)),
    ),
    Rule(
        "load of two elements",
        lambda: nisa.register_load(nisa.register_alloc(), tile(1, 2, dtype=INT32)),
        "nisa.register_load: operand 'src' must have shape [1] or [1, 1], got tensor [1, 2] int32 in sbuf",
        lambda: nisa.register_load(nisa.register_alloc(), tile(1, 2, dtype=INT32)[:, 1:2]),
    ),
    Rule(
        "load of three dimensions",
        lambda: nisa.register_load(nisa.register_alloc(), tile(1, 1, 1, dtype=INT32)),
        "nisa.register_load: operand 'src' must have shape [1] or [1, 1], got tensor [1, 1, 1] int32 in sbuf",
        lambda: nisa.register_load(nisa.register_alloc(), tile(1, 1, 1, dtype=INT32).reshape((1, 1))),
    ),
    Rule(
        "load of a packed type",
        lambda: nisa.register_load(nisa.register_alloc(), tile(1, 1, dtype=nl.float8_e5m2_x4)),
        "nisa.register_load: operand 'src': engines compute with float8_e5m2_x4 in nisa.nc_matmul_mx only, got tensor "
        "[1, 1] float8_e5m2_x4 in sbuf; view it as nl.uint32 to work on its bits",
        lambda: nisa.register_load(nisa.register_alloc(), tile(1, 1, dtype=nl.float8_e5m2)),
    ),
    Rule(
        "store of a float at another width",
        lambda: nisa.register_store(tile(1, 1, dtype=nl.bfloat16), float_register()),
        "nisa.register_store: operand 'dst': VirtualRegister(1.5) holds a float32 and casts nothing, got tensor [1, 1] "
        "bfloat16 in sbuf; store it to a tensor of its own type and cast that with nisa.tensor_copy",
        lambda: nisa.register_store(tile(1, 1), float_register()),
    ),
    Rule(
        "load of 64 bits",
        lambda: nisa.register_load(nisa.register_alloc(), nl.ndarray((1, 1), nl.int64)),
        "nisa.register_load: operand 'src': engines have 32 bits for an element and take no int64, got tensor [1, 1] "
        "int64 in sbuf; nisa.dma_copy copies it, nisa.scalar_load reads one element, and viewed as nl.int32 its halves "
        "are tiles",
        lambda: nisa.scalar_load(tile(1, 2, dtype=INT32).view(nl.int64)),
    ),
    Rule(
        "load of unwritten memory",
        lambda: nisa.register_load(nisa.register_alloc(), nl.ndarray((1, 1), INT32)),
        "nisa.register_load: operand 'src': 1 of the 1 elements of tensor [1, 1] int32 in sbuf were never written",
        lambda: nisa.register_load(nisa.register_alloc(), nl.zeros((1, 1), INT32)),
        error=UninitializedReadError,
    ),
    Rule(
        "store of a number",
        lambda: nisa.register_store(tile(1, 1, dtype=INT32), 3),
        "nisa.register_store: operand 'src' must be a register of nisa.register_alloc, got 3",
        lambda: nisa.register_store(tile(1, 1, dtype=INT32), nisa.register_alloc(3)),
    ),
    Rule(
        "store to several partitions",
        lambda: nisa.register_store(tile(2, 1, dtype=INT32), nisa.register_alloc(3)),
        "nisa.register_store: operand 'dst' must have shape [1] or [1, 1], got tensor [2, 1] int32 in sbuf",
        lambda: nisa.register_store(tile(2, 1, dtype=INT32)[1:2], nisa.register_alloc(3)),
    ),
    Rule(
        "store to PSUM",
        lambda: nisa.register_store(tile(1, 1, dtype=INT32, buffer=nl.psum), nisa.register_alloc(3)),
        "nisa.register_store: operand 'dst' must be in private_hbm or sbuf or shared_hbm, got tensor [1, 1] int32 in "
        "psum",
        lambda: nisa.register_store(tile(1, 1, dtype=INT32), nisa.register_alloc(3)),
    ),
    Rule(
        "store of an integer to a float tensor",
        lambda: nisa.register_store(tile(1, 1), nisa.register_alloc(3)),
        "nisa.register_store: operand 'dst': VirtualRegister(3) holds an integer and casts nothing, got tensor [1, 1] "
        "float32 in sbuf; store it to a tensor of its own type and cast that with nisa.tensor_copy",
        lambda: nisa.register_store(tile(1, 1, dtype=INT32), nisa.register_alloc(3)),
    ),
    Rule(
        "store of a float to an integer tensor",
        lambda: nisa.register_store(tile(1, 1, dtype=INT32), float_register()),
        "nisa.register_store: operand 'dst': VirtualRegister(1.5) holds a float32 and casts nothing, got tensor [1, 1] "
        "int32 in sbuf; store it to a tensor of its own type and cast that with nisa.tensor_copy",
        lambda: nisa.register_store(tile(1, 1), float_register()),
    ),
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
    """Those of one element, and none for a tile in SBUF."""

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
    """With `NKI_PRECISE_FP=0` its memory is float32, and the register knows what it was."""
    with nkilib.simulator.using(precise_fp=False):
        assert through_a_register(np.full((1, 1), 2.5, ml_dtypes.bfloat16), "bfloat16") == 2.5
