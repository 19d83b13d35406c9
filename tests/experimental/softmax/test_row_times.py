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
    ],
)
def test_large_launches_are_near_the_bound(
    shape: tuple[int, ...], dtype: str, kind: Kind, direction: str, most: float
) -> None:
    assert profile_softmax_launch(shape, -1, dtype, kind, direction).fraction_of_bound <= most


def test_one_queue_for_loads_and_stores_is_enough() -> None:
    for direction, most in (("forward", 1.10), ("backward", 1.05)):
        launch = (1024, 32128), -1, "bfloat16", Kind.LOG_SOFTMAX, direction
        assert profile_softmax_launch(*launch, parameters=_ONE_QUEUE).fraction_of_bound <= most
