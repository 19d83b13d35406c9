# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.language.creation``: ``nl.ndarray`` and its relatives, and the limits of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl
from nkilib.simulator import NkiValidationError, UninitializedReadError
from tests.simulator.frame import refused, run, without_line, without_place


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
