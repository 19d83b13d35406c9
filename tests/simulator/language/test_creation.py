# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.language.creation``: ``nl.ndarray`` and its relatives, and the limits of tensors.

Also the places that errors of functions of ``nki.language`` name, calls that fit no signature, and the caches by shape:
bounded, with all that the value depends on in the key, and without the errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss.skeletons.elementwise import tiling
from nkilib.experimental.loss.skeletons.elementwise.tiling import choose_elementwise_tiling
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import ArgumentTypeError, NkiValidationError, UninitializedReadError
from nkilib.simulator.language import creation
from nkilib.simulator.terms import layout
from nkilib.simulator.terms.layout import Layout, dense_form

from ..frame import in_hbm, refused, run, without_line, without_place
from ..kernels import tile


def returned(make: Callable[[], Any], **options: Any) -> Any:
    """The HBM tensor that `make()` makes, as an array."""
    return run(lambda: make(), **options)


def brought_out(make: Callable[[], Any]) -> Any:
    """The values of the on-chip tensor that `make()` makes."""

    def kernel() -> Any:
        tile = make()
        if tile.buffer is nl.psum:
            copy = nl.ndarray(tile.shape, tile.dtype, nl.sbuf)
            nisa.tensor_copy(copy, tile)
            tile = copy
        result = nl.ndarray(tile.shape, tile.dtype, nl.shared_hbm)
        nisa.dma_copy(result, tile)
        return result

    return run(kernel)


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.hbm, nl.private_hbm, nl.shared_hbm, "sbuf", "hbm"], ids=str)
def test_ndarray_is_dense_and_unwritten(buffer: Any) -> None:
    def kernel() -> None:
        t = nl.ndarray((4, 2, 6), nl.float16, buffer, "t")
        assert (t.shape, t.strides, t.offset) == ((4, 2, 6), (12, 6, 1), 0)
        assert (t.dtype, t.name) == (nl.float16, "t")
        assert str(t.buffer) == {"hbm": "private_hbm"}.get(str(buffer), str(buffer))
        assert not t.storage.written.is_written(t.layout, 2)

    run(kernel)


def test_ndarray_is_in_sbuf_by_default() -> None:
    assert run(lambda: nl.ndarray((2, 2), "float32").buffer) is nl.sbuf


@pytest.mark.parametrize("buffer", [nl.hbm, nl.shared_hbm])
def test_filled_tensors_in_hbm(buffer: Any) -> None:
    for array, value in (
        (returned(lambda: nl.zeros((2, 3), nl.float32, buffer)), 0),
        (returned(lambda: nl.ones((2, 3), nl.float32, buffer)), 1),
        (returned(lambda: nl.full((2, 3), 2.5, nl.float32, buffer)), 2.5),
    ):
        np.testing.assert_array_equal(array, np.full((2, 3), value, np.float32), strict=True)


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_filled_tensors_on_chip(buffer: Any) -> None:
    np.testing.assert_array_equal(brought_out(lambda: nl.zeros((2, 3), nl.float32, buffer)), np.zeros((2, 3)))
    np.testing.assert_array_equal(brought_out(lambda: nl.ones((2, 3), nl.int32, buffer)), np.ones((2, 3)))
    np.testing.assert_array_equal(brought_out(lambda: nl.full((2, 3), -7, nl.float32, buffer)), np.full((2, 3), -7))


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (2147483647, nl.int32, 2147483647),
        (-2147483648, nl.int32, -2147483648),
        (4294967295, nl.uint32, 4294967295),
        (16777217, nl.int32, 16777217),
        (np.uint8(200), nl.int16, 200),
        (1e30, nl.bfloat16, ml_dtypes.bfloat16(1e30)),
        (float("-inf"), nl.float32, float("-inf")),
        (1 + 2.0**-11 + 2.0**-20, nl.tfloat32, 1 + 2.0**-10),
        (True, nl.int8, 1),
        (np.float32(0.1), nl.float32, np.float32(0.1)),
        (np.int64(3), nl.float16, 3),
    ],
)
def test_a_fill_value_is_exact_in_integers_and_cast_otherwise(value: Any, dtype: Any, expected: Any) -> None:
    array = returned(lambda: nl.full((2, 3), value, dtype, nl.hbm))
    assert array.dtype == dtype.numpy and (array == expected).all()


def test_like_takes_shape_and_type_unless_given() -> None:
    """And the buffer; but the documentation puts zeros_like into SBUF."""

    def kernel() -> None:
        x = nl.ndarray((4, 6), nl.bfloat16, nl.psum)
        for made, buffer in ((nl.empty_like(x), nl.psum), (nl.zeros_like(x), nl.sbuf)):
            assert (made.shape, made.dtype, made.buffer, made.name) == ((4, 6), nl.bfloat16, buffer, "")
        for made in (nl.empty_like(x, nl.int8, nl.hbm, "a"), nl.zeros_like(x, nl.int8, nl.hbm, "a")):
            assert (made.shape, made.dtype, made.buffer, made.name) == ((4, 6), nl.int8, nl.hbm, "a")
        assert nl.empty_like(x[:, 2:4]).strides == (2, 1)

    run(kernel)


def test_empty_like_is_unwritten_and_zeros_like_is_not() -> None:
    def kernel(empty: bool, x: Any) -> Any:
        return nl.empty_like(x) if empty else nl.zeros_like(x, buffer=nl.shared_hbm)

    x = np.ones((2, 3), np.float32)
    assert not run(kernel, False, x).any()
    message = refused(UninitializedReadError, lambda: run(kernel, True, x))
    assert message == (
        "kernel: the kernel returns tensor [2, 3] float32 in private_hbm, of which 6 of 6 elements were never written"
    )


# -- limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "message", "corrected"),
    [
        (
            lambda: nl.ndarray((129, 4), nl.float32),
            "tensor [129, 4] float32 in sbuf: the partition dimension must be at most 128 (nl.tile_size.pmax), got 129",
            lambda: nl.ndarray((128, 4), nl.float32),
        ),
        (
            lambda: nl.ndarray((129, 4), nl.float32, nl.psum, name="sums"),
            "tensor 'sums' [129, 4] float32 in psum: the partition dimension must be at most 128 (nl.tile_size.pmax), "
            "got 129",
            lambda: nl.ndarray((129, 4), nl.float32, nl.hbm),
        ),
        (
            lambda: nl.ndarray((1, 53247), nl.float32),
            "tensor [1, 53247] float32 in sbuf: 212988 bytes a partition, a partition of trn2 has 212984",
            lambda: nl.ndarray((1, 53246), nl.float32),
        ),
        (
            lambda: nl.ndarray((1, 2, 53247), nl.bfloat16),
            "tensor [1, 2, 53247] bfloat16 in sbuf: 212988 bytes a partition, a partition of trn2 has 212984",
            lambda: nl.ndarray((1, 2, 53246), nl.bfloat16),
        ),
        (
            lambda: nl.ndarray((1, 4097), nl.float32, nl.psum),
            "tensor [1, 4097] float32 in psum: 16388 bytes a partition, a partition of trn2 has 16384",
            lambda: nl.ndarray((1, 4096), nl.float32, nl.psum),
        ),
        (
            lambda: nl.ndarray((4, 0), nl.float32, nl.hbm),
            "shape must be a tuple of positive integers, got (4, 0)",
            lambda: nl.ndarray((4, 1), nl.float32, nl.hbm),
        ),
        (
            lambda: nl.ndarray((), nl.float32, nl.hbm),
            "shape must be a tuple of positive integers, got ()",
            lambda: nl.ndarray((1,), nl.float32, nl.hbm),
        ),
        (
            lambda: nl.ndarray((4, 2.5), nl.float32),  # type: ignore[arg-type]
            "shape must be a tuple of positive integers, got (4, 2.5)",
            lambda: nl.ndarray([4, np.int64(2)], nl.float32),
        ),
        (
            lambda: nl.ndarray(4, nl.float32, nl.hbm),  # type: ignore[arg-type]
            "shape must be a tuple of positive integers, got 4",
            lambda: nl.ndarray((4,), nl.float32, nl.hbm),
        ),
    ],
)
def test_a_tensor_that_cannot_exist_is_refused(broken: Any, message: str, corrected: Any) -> None:
    assert without_place(refused(NkiValidationError, lambda: run(lambda: _none(broken()))), "nl.ndarray") == message
    run(lambda: _none(corrected()))


def _none(_: Any) -> None:
    """Return nothing from a kernel that only makes its argument."""


@pytest.mark.parametrize(("target", "elements"), [("trn1", 45056), ("trn2", 53246), ("trn3", 61438)])
def test_sbuf_grows_with_the_generation(target: str, elements: int) -> None:
    def kernel(extra: int) -> None:
        nl.ndarray((128, elements + extra), nl.float32)

    run(kernel, 0, target=target)
    message = refused(NkiValidationError, lambda: run(kernel, 1, target=target))
    assert without_place(message, "nl.ndarray") == (
        f"tensor [128, {elements + 1}] float32 in sbuf: {elements * 4 + 4} bytes a partition, a partition of {target} "
        f"has {elements * 4}"
    )


def test_a_type_takes_the_room_that_it_has_on_the_device() -> None:
    """Also where it is held in float32 here: 2 * 53246 elements of 2 bytes are all that a partition of trn2 holds."""

    def kernel() -> None:
        nisa.memset(nl.ndarray((1, 2 * 53246), nl.bfloat16)[:, 0:1], 0)

    with nkilib.simulator.recording() as record:
        run(kernel, precise_fp=False)
    assert record.sbuf_peak_bytes == 2 * 2 * 53246


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        ("a", nl.float32, "value must be a compile-time number, got 'a'"),
        (None, nl.float32, "value must be a compile-time number, got None"),
        (128, nl.int8, "value must be in [-128, 127] for int8, got 128"),
        (-1, nl.uint16, "value must be in [0, 65535] for uint16, got -1"),
        (2.5, nl.int32, "value must be an integer for int32, got 2.5"),
        (float("nan"), nl.int32, "value must be an integer for int32, got nan"),
        (256.0, nl.uint8, "value must be in [0, 255] for uint8, got 256"),
        (float("inf"), nl.uint8, "value must be an integer for uint8, got inf"),
        (np.float32(0.5), nl.int16, "value must be an integer for int16, got np.float32(0.5)"),
    ],
)
def test_a_wrong_fill_value_is_refused(value: Any, dtype: Any, message: str) -> None:
    error = refused(NkiValidationError, lambda: run(lambda: _none(nl.full((2, 3), value, dtype))))
    assert without_place(error, "nl.full") == message
    run(lambda: _none(nl.full((2, 3), 127, dtype)))


def test_a_float_that_is_an_integer_fills_integer_tensors_exactly() -> None:
    """Public kernels write it; 2^24 + 1 is no float32, so nothing goes through one."""

    def kernel() -> Any:
        return nl.full((2,), 16777217.0, nl.int32, nl.shared_hbm), nl.full((2,), -0.0, nl.uint8, nl.shared_hbm)

    integers, zeros = run(kernel)
    assert integers.tolist() == [16777217, 16777217]
    assert zeros.tolist() == [0, 0]


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_an_on_chip_tensor_of_one_dimension_gets_a_second_one(buffer: Any) -> None:
    shapes: list[Any] = []
    run(lambda: _none(shapes.append(nl.ndarray((4,), nl.float32, buffer).shape)))
    run(lambda: _none(shapes.append(nl.ndarray((4,), nl.float32, nl.hbm).shape)))
    assert shapes == [(4, 1), (4,)]


@pytest.mark.parametrize("make", [nl.ndarray, nl.zeros, nl.ones])
def test_tensors_are_made_in_kernels_only(make: Any) -> None:
    expected = "nl.ndarray works inside a kernel only: decorate the function with @nki.jit and call it"
    assert refused(NkiValidationError, lambda: make((2, 2), nl.float32)) == expected


# -- shared HBM ------------------------------------------------------------------------------------------------


def test_shared_tensors_are_one() -> None:
    def kernel() -> Any:
        t = nl.ndarray((2, 3), nl.float32, nl.shared_hbm)
        nisa.dma_copy(t[nl.program_id()], nl.full((1, 3), nl.program_id() + 1, nl.float32))
        return t

    np.testing.assert_array_equal(run(kernel, cores=2), [[1, 1, 1], [2, 2, 2]])


@pytest.mark.parametrize("core", [0, 1])
def test_private_tensors_are_the_cores_own(core: int) -> None:
    """Each core writes its row of a tensor of its own, and finds the other row unwritten."""

    def kernel() -> Any:
        own = nl.ndarray((2, 3), nl.float32, nl.private_hbm)
        nisa.dma_copy(own[nl.program_id()], nl.full((1, 3), nl.program_id() + 1, nl.float32))
        result = nl.ndarray((2, 3), nl.float32, nl.shared_hbm)
        if nl.program_id() == core:
            nisa.dma_copy(result, own)
        return result

    expected = np.full((2, 3), np.nan)
    expected[core] = core + 1
    np.testing.assert_array_equal(run(kernel, cores=2, uninitialized="nan"), expected)


def test_cores_must_make_the_same_shared_tensors() -> None:
    def kernel(second: Any) -> None:
        nl.ndarray((2, 3), nl.float32, nl.shared_hbm)
        if nl.program_id() == 0:
            nl.ndarray((4,), nl.int32, nl.shared_hbm)
            nisa.core_barrier(nl.ndarray((1,), nl.int32, nl.shared_hbm), (0, 1))
        else:
            nl.ndarray(*second, nl.shared_hbm)
            nisa.core_barrier(nl.ndarray((1,), nl.int32, nl.shared_hbm), (0, 1))

    run(kernel, ((4,), nl.int32), cores=2)
    for wrong in ((5,), nl.int32), ((4,), nl.float32):
        message = refused(NkiValidationError, lambda wrong=wrong: run(kernel, wrong, cores=2))  # type: ignore[misc]
        one, other = "[4] int32", f"{list(wrong[0])} {wrong[1]}"
        expected = (
            "nl.ndarray in shared_hbm: all cores must make the same shared tensors in the same order; number 1 is "
            "{} on one core and {} on another"
        )
        # The core that comes second is refused.
        core = 0 if message.endswith(f"{one} on another") else 1
        text = expected.format(*((other, one) if core == 0 else (one, other)))
        assert without_line(message, core) == text


def test_where_unwritten_reads_are_errors_new_memory_does_not_show_what_was_there_before() -> None:
    """A tile of the size of one that has just gone would have its memory, and with it the right answer of a copy."""
    results: list[Any] = []

    def kernel() -> None:
        gone = nl.full((4, 8), 3, nl.int8)
        del gone
        results.append(nl.ndarray((4, 8), nl.int8).array.copy())

    run(kernel)
    assert (results[0].view(np.uint8) == 0xA5).all()


NEVER_WRITTEN = "operand 'data': 4 of the 4 elements of tensor [2, 2] float32 in sbuf were never written"


def message(body: Any, cores: int = 1, error: type[Exception] = NkiValidationError) -> str:
    """Return the message that refuses `body`, after the place, which is the line on which `body` begins."""
    with nkilib.simulator.using(uninitialized="nan"):
        text = refused(error, lambda: run(body, cores=cores))
    place = f"{__file__}:{body.__code__.co_firstlineno}: "
    assert text.startswith(place)
    return text.removeprefix(place)


def test_the_functions_own_refusal() -> None:
    assert message(lambda: nl.matmul(tile(2, 2), tile(3, 2))).startswith("nl.matmul: dimension 1 of x must be")


def test_the_instruction_inside_is_named_after_the_function() -> None:
    assert message(lambda: nl.dropout(tile(2, 2), 2)) == (
        "nl.dropout: nisa.dropout: prob must be a probability, in [0, 1], got 2"
    )
    assert message(lambda: nl.load(nl.zeros((129, 2), nl.int8, nl.hbm))) == (
        "nl.load: nl.ndarray: tensor [129, 2] int8 in sbuf: the partition dimension must be at most 128 "
        "(nl.tile_size.pmax), got 129"
    )


def test_of_functions_that_call_each_other_the_one_in_the_kernel_is_named() -> None:
    packed = "value must be 0 for the packed type float8_e5m2_x4, got 1; load other values with nisa.dma_copy"
    assert message(lambda: nl.ones((2, 2), nl.float8_e5m2_x4)) == f"nl.ones: {packed}"
    assert message(lambda: nl.full((2, 2), 1, nl.float8_e5m2_x4)) == f"nl.full: {packed}"


@pytest.mark.parametrize("failing", [0, 1])
def test_on_two_cores_the_core_is_named_once(failing: int) -> None:
    def own() -> None:
        nl.ones((2, 2), nl.float8_e5m2_x4) if nl.program_id() == failing else None

    def inside() -> None:
        nl.dropout(tile(2, 2), 2) if nl.program_id() == failing else None

    for kernel, expected in (
        (own, f"nl.ones on core {failing}: value must be 0 for the packed type"),
        (inside, f"nl.dropout: nisa.dropout on core {failing}: prob must be a probability"),
    ):
        text = refused(NkiValidationError, lambda kernel=kernel: run(kernel, cores=2))  # type: ignore[misc]
        assert text.startswith(f"{__file__}:{inspect.getsourcelines(kernel)[1] + 1}: {expected}")


def test_the_line_is_the_one_of_the_helper_that_calls_the_function() -> None:
    def helper() -> None:
        nl.exp(nl.zeros((2, 2), nl.float32, nl.hbm))

    line = inspect.getsourcelines(helper)[1] + 1
    text = refused(NkiValidationError, lambda: run(lambda: helper()))
    assert text.startswith(f"{__file__}:{line}: nl.exp: x must be a tile in sbuf or psum")


def test_the_class_of_the_error_stays() -> None:
    with nkilib.simulator.using(uninitialized="error"):
        text = refused(
            nkilib.simulator.UninitializedReadError, lambda: run(lambda: nl.exp(nl.ndarray((2, 2), nl.float32)))
        )
    assert text.endswith(f": nl.exp: nisa.activation: {NEVER_WRITTEN}")


def test_outside_a_kernel_there_is_no_line_to_name() -> None:
    works_inside = "nl.ndarray works inside a kernel only: decorate the function with @nki.jit and call it"
    assert refused(NkiValidationError, lambda: nl.zeros((2, 2), nl.int8)) == works_inside
    assert refused(NkiValidationError, lambda: nl.exp(in_hbm(np.zeros((2, 2), np.float32)))).startswith(
        "x must be a tile in sbuf"
    )


MASK = (
    "got an unexpected keyword argument 'mask'; 'mask' was removed from NKI: slice the tensors to what is inside, "
    "t[:rows, :columns]"
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda: nl.add(tile(2, 2)), "nl.add: missing a required argument: 'y'"),
        (lambda: nl.sum(tile(2, 2)), "nl.sum: missing a required argument: 'axis'"),
        (
            lambda: nl.softmax(tile(2, 2), dim=1),
            "nl.softmax: got an unexpected keyword argument 'dim'; did you mean 'axis'?",
        ),
        (lambda: nl.zeros((2, 2)), "nl.zeros: missing a required argument: 'dtype'"),
        (lambda: nl.load(tile(2, 2), mask=None), "nl.load: " + MASK),
        (lambda: nisa.tensor_copy(tile(2, 2), tile(2, 2), mask=None), "nisa.tensor_copy: " + MASK),
        (
            lambda: nisa.dma_copy(tile(2, 2), tile(2, 2), dst_rmw_op=nl.add),
            "nisa.dma_copy: got an unexpected keyword argument 'dst_rmw_op'; 'dst_rmw_op' was removed from NKI: use "
            "nisa.dma_compute",
        ),
        (
            lambda: nisa.register_move(nisa.register_alloc(), imm=42),
            "nisa.register_move: missing a required argument: 'src'; 'imm' was removed from NKI: pass src",
        ),
        (
            lambda: nisa.sendrecv(tile(2, 2), tile(2, 2), 0, 0, 0, use_gpsimd_dma=True),
            "nisa.sendrecv: got an unexpected keyword argument 'use_gpsimd_dma'; 'use_gpsimd_dma' was removed from "
            "NKI: pass dma_engine=nisa.dma_engine.gpsimd_dma",
        ),
    ],
)
def test_a_call_that_does_not_fit_the_signature(body: Any, expected: str) -> None:
    assert message(body, error=ArgumentTypeError) == expected


def test_a_parameter_that_another_function_has_is_not_called_removed() -> None:
    """`unique_indices` left dma_copy for dma_compute."""
    parameters = inspect.signature(nisa.dma_compute).parameters
    assert "unique_indices" in parameters
    expected = "nisa.dma_compute: missing a required argument: 'srcs'"
    assert message(lambda: nisa.dma_compute(tile(2, 2), unique_indices=True), error=ArgumentTypeError) == expected


def test_a_wrong_data_type_names_the_function() -> None:
    expected = "dtype must be an NKI data type such as nl.float32 or nl.bfloat16, got <class 'float'>"
    assert message(lambda: nl.exp(tile(2, 2), dtype=float), error=ArgumentTypeError) == f"nl.exp: {expected}"
    zeros = message(lambda: nl.zeros((2, 2), float), error=ArgumentTypeError)
    assert zeros == f"nl.zeros: nl.ndarray: {expected}"


# More than a partition of trn2 has for kernels, and less than one of trn3.
COLUMNS = 220_000 // 4


def _made(shape: Any, name: str = "t") -> None:
    def kernel(x_hbm: Any) -> None:
        nl.ndarray(shape, nl.float32, name=name)

    nki.jit(kernel)(np.ones((1, 1), np.float32))


@pytest.mark.parametrize("cached", [dense_form, creation._may_exist, tiling._chosen, layout.dense_form])
def test_caches_are_bounded(cached: Any) -> None:
    assert 0 < cached.cache_parameters()["maxsize"] <= 4096


def test_what_may_exist_depends_on_the_target() -> None:
    for _ in range(2):
        with nkilib.simulator.using(target="trn3"):
            _made((128, COLUMNS))
        with (
            nkilib.simulator.using(target="trn2"),
            pytest.raises(NkiValidationError, match=f"{4 * COLUMNS} bytes a partition, a partition of trn2 has"),
        ):
            _made((128, COLUMNS))


def test_a_refusal_names_its_own_tensor() -> None:
    for name in ("one", "other"):
        with pytest.raises(NkiValidationError, match=f"{name}.*the partition dimension must be at most 128"):
            _made((129, 4), name)
        with pytest.raises(NkiValidationError, match="shape must be a tuple of positive integers, got"):
            _made((4, 0), name)


def test_a_shape_of_other_numbers_that_are_equal_is_refused_as_ever() -> None:
    _made((4, 8))
    with pytest.raises(NkiValidationError, match=r"positive integers, got \(4, 8\.0\); of two integers, / makes"):
        _made((4, 8.0))


def test_the_form_of_a_shape() -> None:
    assert dense_form((2, 3, 4)) == (Layout((2, 3, 4), (12, 4, 1), 0), 24, 12)
    assert dense_form(()) == (Layout((), (), 0), 1, 1)


def test_a_tiling_obeys_the_limits_in_force() -> None:
    usual = choose_elementwise_tiling(1 << 24, 12)
    with shrunk(PlanLimits(sbuf_bytes=96 * 1024)):
        assert choose_elementwise_tiling(1 << 24, 12) != usual
    with shrunk(PlanLimits(piece_columns=128)):
        choose_elementwise_tiling(1 << 24, 12)
        assert tiling._chosen.cache_info().currsize >= 3
    assert choose_elementwise_tiling(1 << 24, 12) == usual
