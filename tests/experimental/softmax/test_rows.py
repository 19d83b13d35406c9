# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The last axis: values, bits, hard rows, types, and the modelled time beside what the hardware needs. Modelled, not
measured.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.experimental.softmax import choose_softmax_tiling, log_softmax_forward, softmax_forward
from nkilib.experimental.softmax.profiling import profile_softmax_launch
from nkilib.experimental.softmax.tensors import Kind
from nkilib.nki import nl
from nkilib.simulator import ModelParameters
from tests.experimental.softmax.softmax_checks import DTYPES, KERNELS, Kernel

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Tiny, short, whole in a piece, whole with exponentials in tiles of their own, in several pieces, and on several
# partitions, where the last part is longer.
SHAPES = ((3, 5), (300, 7), (140, 128), (131, 513), (130, 2051), (3, 5000), (2, 40003))
# Rows on more partitions than they need: in several pieces, in one, of few elements, with a long last part, and more
# partitions than elements; and so many that a core has two batches.
SPREAD = (((3, 9000), 3), ((5, 3000), 8), ((70, 2000), 64), ((3, 700), 128), ((2, 5), 128), ((67, 2600), 4))

each_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)

HARD = (
    [-np.inf] * 4,
    [np.inf, 1, 2, 3],
    [np.nan, 1, 2, 3],
    [-np.inf, 1, 2, 3],
    [1e4, -1e4, 0, 1],
    [-3e38] * 4,
    [3e38, -3e38, 0, 0],
    [5, 5, 5, 5],
    [0, -80, -95, -103],
)


def _in_places(columns: int) -> list[npt.NDArray[Any]]:
    """Rows whose pieces differ: only -inf, NaN and +inf at one end, and maxima that are far below another one."""
    first = np.arange(columns) < columns // 2
    one = np.arange(columns) == columns - 1
    steps = np.linspace(-200.0, 0.0, columns)
    return [
        np.where(first, -np.inf, 1.0),
        np.where(first, 1.0, -np.inf),
        np.where(one, np.nan, 1.0),
        np.where(one, np.inf, 1.0),
        np.where(one, 0.0, -np.inf),
        np.where(one, 9.0, 2.0),  # p is about 0.999 of short rows
        np.where(first, -90.0, 0.0),
        np.where(first, -1e30, steps),
        steps,
        steps[::-1],
    ]


_ONE_QUEUE = ModelParameters(queues_by_direction=False)


@each_kernel
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_are_within_their_bounds(kernel: Kernel, shape: tuple[int, int], dtype: Any) -> None:
    inputs = kernel.inputs(shape, dtype)
    result = kernel.function[2](*inputs)
    assert result.dtype == dtype and kernel.worst_error(result, inputs) <= 1.0
    for wrong in (np.zeros_like(result), -result, result[::-1]):
        assert not kernel.worst_error(wrong, inputs) <= 1.0


@each_kernel
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "partitions"), SPREAD, ids=str)
def test_rows_on_more_partitions_are_within_their_bounds(
    kernel: Kernel, shape: tuple[int, int], partitions: int, dtype: Any
) -> None:
    """Bits depend on the row and on the number of partitions, not on other rows and cores."""
    inputs = kernel.inputs(shape, dtype)
    result = kernel.function[2](*inputs, partitions_per_row=partitions)
    assert result.dtype == dtype and kernel.worst_error(result, inputs) <= 1.0
    for wrong in (np.zeros_like(result), -result, result[::-1]):
        assert not kernel.worst_error(wrong, inputs) <= 1.0
    last = kernel.function[1](*(item[-1:] for item in inputs), partitions_per_row=partitions)
    assert last.tobytes() == result[-1:].tobytes()


@pytest.mark.parametrize("partitions", [0, -1, 129, 2.0, True, "8"])
def test_a_number_of_partitions_that_there_is_not_is_refused(partitions: Any) -> None:
    for kernel in KERNELS.values():
        message = f"{kernel.name}: partitions_per_row must be an integer from 1 to 128 or None, got {partitions}; pass"
        with pytest.raises(AssertionError, match=message):
            kernel.function[2](*kernel.inputs((2, 300), np.float32), partitions_per_row=partitions)


def test_other_axes_take_no_partitions_per_row() -> None:
    for kernel in KERNELS.values():
        inputs = kernel.inputs((2, 40, 30), np.float32, axis=1)
        expected = kernel.function[2](*inputs, 1)
        assert kernel.function[2](*inputs, 1, partitions_per_row=16).tobytes() == expected.tobytes()


@each_kernel
@given(rows=st.integers(1, 300), columns=st.integers(1, 200), seed=st.integers(0, 9), dtype=st.sampled_from(DTYPES))
@settings(max_examples=15, deadline=None)
def test_any_small_size(kernel: Kernel, rows: int, columns: int, seed: int, dtype: Any) -> None:
    inputs = kernel.inputs((rows, columns), dtype, seed)
    assert kernel.worst_error(kernel.function[2](*inputs), inputs) <= 1.0


@each_kernel
@pytest.mark.parametrize("dtype", DTYPES[::2], ids=str)
@pytest.mark.parametrize("columns", [5, 100, 700, 2100, 5000])
def test_bits_of_a_row_depend_on_it_alone(kernel: Kernel, columns: int, dtype: Any) -> None:
    inputs = kernel.inputs((270, columns), dtype)
    on_two = kernel.function[2](*inputs)
    assert kernel.function[1](*inputs).tobytes() == on_two.tobytes()
    few = [item[133:139] for item in inputs]
    assert kernel.function[2](*few).tobytes() == on_two[133:139].tobytes()


def test_bits_of_a_row_on_several_partitions_depend_on_it_alone() -> None:
    for kernel in KERNELS.values():
        inputs = kernel.inputs((5, 40003), BFLOAT16)
        on_two = kernel.function[2](*inputs)
        assert kernel.function[1](*(item[3:4] for item in inputs)).tobytes() == on_two[3:4].tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("columns", "partitions"),
    [(4, None), (100, None), (1000, None), (2500, None), (12289, None), (50001, None), (2500, 16), (12289, 8)],
)
def test_hard_rows_are_as_in_pytorch(columns: int, partitions: int | None, dtype: Any) -> None:
    import torch

    with np.errstate(over="ignore"):
        x = np.stack([*(np.resize(row, columns) for row in HARD), *_in_places(columns)]).astype(dtype)
    exact = torch.tensor(x.astype(np.float32)).double()
    for name, of_torch in (("softmax_forward", torch.softmax), ("log_softmax_forward", torch.log_softmax)):
        kernel = KERNELS[name]
        result = kernel.function[2](x, partitions_per_row=partitions)
        expected = of_torch(exact, -1).numpy()
        np.testing.assert_array_equal(np.isnan(result.astype(np.float64)), np.isnan(expected))
        usual = np.isfinite(expected).all(axis=1) & (np.abs(expected) < 3e38).all(axis=1)
        assert usual.any() and kernel.worst_error(result[usual], [x[usual]]) <= 1.0
        infinite = np.isinf(expected)
        np.testing.assert_array_equal(result.astype(np.float64)[infinite], expected[infinite])


@pytest.mark.parametrize("columns", [6, 100, 1000, 5000])
def test_types_mix(columns: int) -> None:
    for kernel in KERNELS.values():
        inputs = kernel.inputs((20, columns), np.float32)
        for types, dtype in (
            ((BFLOAT16, np.float32), nl.float32),
            ((np.float32, BFLOAT16), nl.bfloat16),
            ((np.float32, np.float32), nl.float16),
            ((BFLOAT16, np.float16), nl.float32),
        ):
            mixed = [array.astype(type_) for array, type_ in zip(inputs, types, strict=False)]
            result = kernel.function[2](*mixed, dtype=dtype)
            assert result.dtype.name == str(np.dtype(result.dtype)) and kernel.worst_error(result, mixed) <= 1.0


def test_a_gradient_is_written_over_the_upstream_one() -> None:
    for kernel in (kernel for kernel in KERNELS.values() if kernel.is_backward):
        grad, output = kernel.inputs((140, 300), BFLOAT16)
        expected = kernel.function[2](grad, output)
        kept = grad.copy()
        result = kernel.function[2](grad, output, inplace=True)
        assert result.tobytes() == grad.tobytes() == expected.tobytes() != kept.tobytes()


def test_large_logits_lose_nothing_in_float32() -> None:
    kernel = KERNELS["softmax_forward"]
    for columns in (5, 1000, 9000):
        x = 10000.0 + kernel.inputs((3, columns), np.float32)[0]
        assert kernel.worst_error(softmax_forward[2](x), [x]) <= 1.0


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0,), (2, 0, 3)])
def test_nothing_comes_back_as_it_is(shape: tuple[int, ...]) -> None:
    assert log_softmax_forward[2](np.zeros(shape, np.float32)).shape == shape


def test_a_chunk_size_changes_the_program_and_not_the_result() -> None:
    for kernel in KERNELS.values():
        inputs = kernel.inputs((5, 1000), np.float32)
        for chunk_size in (64, 333):
            assert kernel.worst_error(kernel.function[2](*inputs, chunk_size=chunk_size), inputs) <= 1.0


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "direction", "most"),
    [
        ((8, 6, 1024, 1024), "bfloat16", Kind.LOG_SOFTMAX, "forward", 1.10),
        ((8, 6, 1024, 1024), "bfloat16", Kind.LOG_SOFTMAX, "backward", 1.05),
        ((8, 6, 1024, 1024), "bfloat16", Kind.SOFTMAX, "forward", 1.10),
        ((8, 6, 1024, 1024), "bfloat16", Kind.SOFTMAX, "backward", 1.05),
        ((1024, 32128), "bfloat16", Kind.LOG_SOFTMAX, "forward", 1.05),
        ((256, 262144), "bfloat16", Kind.LOG_SOFTMAX, "backward", 1.05),
        ((131072, 128), "bfloat16", Kind.LOG_SOFTMAX, "backward", 1.20),
        ((131072, 128), "bfloat16", Kind.SOFTMAX, "backward", 1.10),
        ((131072, 128), "bfloat16", Kind.SOFTMAX, "forward", 1.53),  # of which Scalar, row by row, is the reason
        ((65536, 256), "bfloat16", Kind.SOFTMAX, "forward", 1.28),
    ],
)
def test_large_launches_are_near_the_bound(
    shape: tuple[int, ...], dtype: str, kind: Kind, direction: str, most: float
) -> None:
    assert profile_softmax_launch(shape, -1, dtype, kind, direction).fraction_of_bound <= most


@pytest.mark.parametrize(
    ("shape", "kind", "direction", "most"),
    [
        ((1024, 32128), Kind.LOG_SOFTMAX, "forward", 1.10),
        ((1024, 32128), Kind.LOG_SOFTMAX, "backward", 1.05),
        ((8, 6, 1024, 1024), Kind.SOFTMAX, "backward", 1.05),
        ((8192, 4096), Kind.SOFTMAX, "backward", 1.05),
    ],
)
def test_one_queue_for_loads_and_stores_is_enough(
    shape: tuple[int, ...], kind: Kind, direction: str, most: float
) -> None:
    profiled = profile_softmax_launch(shape, -1, "bfloat16", kind, direction, parameters=_ONE_QUEUE)
    assert profiled.fraction_of_bound <= most


@pytest.mark.parametrize("columns", [1024, 2048])
def test_float32_of_wide_rows_does_with_one_queue_too(columns: int) -> None:
    shape = (2**24 // columns, columns)
    profiled = profile_softmax_launch(shape, -1, "float32", Kind.SOFTMAX, "backward", parameters=_ONE_QUEUE)
    assert profiled.fraction_of_bound <= 1.02


@pytest.mark.parametrize(
    ("shape", "most"),
    [((8192, 2304), 1.10), ((4096, 4096), 1.10), ((4096, 8192), 1.10), ((2048, 16000), 1.10), ((2048, 32128), 1.25)],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_softmax_of_long_rows_computes_each_exponential_once(shape: tuple[int, int], most: float, dtype: str) -> None:
    profiled = profile_softmax_launch(shape, -1, dtype, Kind.SOFTMAX, "forward")
    assert profiled.fraction_of_bound <= most


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("shape", [(32, 32000), (32, 50257)], ids=str)
def test_few_rows_are_computed_on_all_partitions(shape: tuple[int, int], kind: Kind) -> None:
    tiling = choose_softmax_tiling(shape, -1, "bfloat16", "forward", kind=kind)
    assert profile_softmax_launch(shape, -1, "bfloat16", kind, "forward", **tiling._asdict()).time_us <= 32.0
