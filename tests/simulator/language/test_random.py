# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`nl.rand`, `nl.random_seed` and `nl.dropout`: which numbers repeat, where they lie, and how evenly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl
from nkilib.simulator import NkiValidationError

from ..frame import refused
from ..kernels import Result, Tile, execute, run, store, tile

# Significant bits of a type: its random numbers are multiples of 2 to the minus that.
BITS = {
    nl.float32: 24,
    nl.tfloat32: 11,
    nl.float16: 11,
    nl.bfloat16: 8,
    nl.float8_e4m3: 4,
    nl.float8_e4m3fn: 4,
    nl.float8_e5m2: 3,
}


def drawn(shape: Any, dtype: Any = nl.float32, buffer: Any = nl.sbuf, **options: Any) -> Any:
    """Return the numbers that `nl.rand` draws."""

    def kernel() -> Any:
        made = nl.rand(shape, dtype, buffer, "numbers")
        assert (made.shape, made.dtype, made.buffer, made.name) == (shape, dtype, buffer, "numbers")
        return made if buffer in (nl.shared_hbm, nl.private_hbm) else store(made)

    with nkilib.simulator.using(**options):
        return execute(kernel, options.get("target", "trn2"))


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_numbers_are_uniform_between_0_and_1(target: str) -> None:
    """Mean and variance of 65536 numbers within 5 standard deviations; chi-square in 256 classes: 255 +- 5 * 22.6."""
    values = drawn((128, 512), target=target).astype(np.float64)
    assert 0 <= values.min() < 0.001 and 0.999 < values.max() < 1
    assert abs(values.mean() - 1 / 2) < 5 * (1 / 12 / values.size) ** 0.5
    assert abs(values.var() - 1 / 12) < 5 * (1 / 180 / values.size) ** 0.5
    counts = np.histogram(values, bins=256, range=(0, 1))[0]
    assert abs(((counts - 256.0) ** 2 / 256).sum() - 255) < 5 * 22.6


@pytest.mark.parametrize("precise_fp", [True, False])
@pytest.mark.parametrize("dtype", BITS)
def test_numbers_are_multiples_of_the_last_bit_below_1(dtype: Any, precise_fp: bool) -> None:
    """None of 65536 is 1, which the nearest bfloat16 of every 512th float32 number would be."""
    scaled = drawn((128, 512), dtype, precise_fp=precise_fp).astype(np.float64) * 2.0 ** BITS[dtype]
    np.testing.assert_array_equal(scaled, np.rint(scaled))
    assert scaled.min() >= 0 and scaled.max() < 2.0 ** BITS[dtype]
    if BITS[dtype] <= 8:
        assert len(np.unique(scaled)) == 2 ** BITS[dtype]


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
@pytest.mark.parametrize("shape", [(1, 1), (128, 3), (5, 2, 3, 4)])
def test_the_tile_has_the_shape_and_the_buffer(shape: tuple[int, ...], buffer: Any) -> None:
    values = drawn(shape, buffer=buffer)
    assert values.shape == shape
    np.testing.assert_array_equal(values, drawn(shape))


@pytest.mark.parametrize("buffer", [nl.shared_hbm, nl.private_hbm])
@pytest.mark.parametrize("shape", [(1,), (127,), (129,), (3, 50), (300, 7), (128, 2048), (2, 128, 1025)])
def test_a_tensor_in_hbm_may_have_any_shape(shape: tuple[int, ...], buffer: Any) -> None:
    values = drawn(shape, buffer=buffer)
    # Of n numbers of 24 bits, n^2 / 2^25 pairs are equal on average: 2052 for the largest tensor, whose 1% is 2624.
    assert values.shape == shape and np.unique(values).size > 0.99 * values.size
    assert values.min() >= 0 and values.max() < 1


def test_a_second_call_goes_on() -> None:
    first, second = run(
        lambda first, second: (
            nisa.tensor_copy(first, nl.rand((8, 16), nl.float32)),
            nisa.tensor_copy(second, nl.rand((8, 16), nl.float32)),
        ),
        [],
        *[Result((8, 16))] * 2,
    )
    assert not np.isin(second, first).any()


def test_the_same_seed_gives_the_same_numbers() -> None:
    """The example of the documentation, and another seed."""

    def kernel() -> Any:
        results = []
        for value in (42, 42, 43):
            seed = nl.full((1, 1), value, dtype=nl.int32, buffer=nl.sbuf)
            assert nl.random_seed(seed) is None  # type: ignore[func-returns-value]
            results.append(store(nl.rand((128, 64), dtype=nl.float32)))
        return results

    first, second, other = execute(kernel)
    np.testing.assert_array_equal(first, second)
    assert np.isin(other, first).mean() < 0.01


@pytest.mark.parametrize("dtype", [nl.int32, nl.uint8, nl.bool_, nl.float8_e8m0fnu])
def test_a_type_without_numbers_between_0_and_1_is_refused(dtype: Any) -> None:
    message = refused(NkiValidationError, lambda: execute(lambda: nl.rand((2, 2), dtype)))
    names = "float32, tfloat32, float16, bfloat16, float8_e4m3, float8_e4m3fn, float8_e5m2"
    assert message.endswith(f": nl.rand: dtype must be one of {names}, got {dtype}")


def test_a_seed_is_a_tile_of_32_bits() -> None:
    message = refused(NkiValidationError, lambda: execute(lambda: nl.random_seed(42)))  # type: ignore[arg-type]
    assert message.endswith(": nisa.set_rng_seed: operand 'src_seeds' must be a tensor, got 42")


def dropped(data: Any, rate: Any, dtype: Any = None, buffer: Any = nl.sbuf) -> Any:
    """Return the result of `nl.dropout`."""

    def body(dst: Any, tile: Any) -> None:
        result = nl.dropout(tile, rate() if callable(rate) else rate, dtype)
        assert (result.shape, result.dtype, result.buffer) == (dst.shape, dst.dtype, nl.sbuf)
        nisa.tensor_copy(dst, result)

    return run(body, [Tile(data, buffer=buffer)], Result(data.shape, dtype or str(data.dtype)))


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_dropout_zeroes_at_the_rate_and_does_not_scale(buffer: Any) -> None:
    """65536 elements: 5 standard deviations of the share are 0.0085."""
    data = np.arange(1, 65537, dtype=np.float32).reshape(128, 512)
    result = dropped(data, 0.25, buffer=buffer)
    assert ((result == 0) | (result == data)).all()
    assert abs((result == 0).mean() - 0.25) < 0.0085


def test_the_input_of_dropout_stays() -> None:
    data = np.ones((4, 64), np.float32)

    def body(dst: Any, tile: Any) -> None:
        nl.dropout(tile, 1.0)
        nisa.tensor_copy(dst, tile)

    np.testing.assert_array_equal(run(body, [data], Result(data.shape)), data)


def test_a_tile_of_rates() -> None:
    def rates() -> Any:
        made = tile(64, 1, value=0.0)
        nisa.memset(made[32:], 1.0)
        return made

    result = dropped(np.ones((64, 8), np.float32), rates)
    assert (result[:32] == 1).all() and (result[32:] == 0).all()


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.int32])
def test_the_result_of_dropout_may_be_cast(dtype: Any) -> None:
    data = np.full((4, 64), 3.0, np.float32)
    result = dropped(data, 0.5, dtype).astype(np.float32)
    np.testing.assert_array_equal(result, dropped(data, 0.5))
    assert set(np.unique(result)) == {0, 3}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda: nl.dropout(3, 0.5), "nl.dropout: x must be a tile, got 3"),
        (
            lambda: nl.dropout(store(tile(2, 2)), 0.5),
            "nl.dropout: x must be a tile in sbuf or psum, got tensor [2, 2] float32 in shared_hbm: load it first, "
            "with nl.load",
        ),
        (
            lambda: nl.dropout(tile(2, 2), -0.5),
            "nl.dropout: nisa.dropout: prob must be a probability, in [0, 1], got -0.5",
        ),
    ],
)
def test_what_dropout_refuses(body: Any, message: str) -> None:
    assert refused(NkiValidationError, lambda: execute(body)).endswith(f": {message}")
