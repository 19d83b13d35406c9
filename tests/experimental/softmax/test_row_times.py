# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The modelled time of the last axis, beside what the hardware needs. Modelled, not measured."""

from __future__ import annotations

import pytest

from nkilib.experimental.softmax.host.profiling import profile_softmax_launch
from nkilib.experimental.softmax.kind import Kind
from nkilib.simulator import ModelParameters

_ONE_QUEUE = ModelParameters(queues_by_direction=False)


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


def test_softmax_of_long_rows_is_near_two_passes_of_scalar() -> None:
    profiled = profile_softmax_launch((2048, 32128), -1, "bfloat16", Kind.SOFTMAX, "forward")
    elements_per_us = 2 * 128 * 1200  # of Scalar, on two cores of trn2
    assert profiled.time_us <= 1.15 * 2 * 2048 * 32128 / elements_per_us
