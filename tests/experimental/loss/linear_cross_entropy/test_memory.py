# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Bytes of HBM beyond inputs and outputs, counted where a kernel allocates them, are what host/memory.py says."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss.linear.host.memory import backward_bytes
from nkilib.experimental.loss.linear_cross_entropy.host.guarantees import (
    backward_workspace_bytes,
    one_launch_workspace_bytes,
)
from nkilib.experimental.loss.linear_cross_entropy.host.memory import one_launch_bytes
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import choose_linear_tiling
from nkilib.experimental.loss.profiling import profile_linear_launch
from nkilib.nki import nl
from nkilib.simulator import spec

OUTPUTS = {"loss_hbm", "lse_hbm", "grad_input_hbm", "grad_weight_hbm", "grad_bias_hbm"}
# What the backward may take for dW of a class block, a core.
WEIGHT_SCRATCH_BYTES = 64 * 2**20
# Beside what is counted: a scalar of each core.
SCALARS = 64


@pytest.fixture
def beyond(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Profiles a launch and returns the bytes of HBM that its kernel allocated for itself, on both cores."""
    allocate, results = nl.ndarray, {}

    def counting(shape: tuple[int, ...], dtype: Any, buffer: Any = None, name: str = "", **further: Any) -> Any:
        tensor = allocate(shape, dtype=dtype, buffer=buffer, name=name, **further)
        if buffer in (nl.shared_hbm, nl.private_hbm) and name not in OUTPUTS:
            core = 0 if buffer is nl.shared_hbm else nl.program_id(0)
            place = (core, name or len(results))
            results[place] = prod(shape) * tensor.dtype.itemsize
        return tensor

    def count(*sizes: Any, **options: Any) -> int:
        results.clear()
        profile_linear_launch(*sizes, **options)
        return sum(results.values())

    monkeypatch.setattr(nl, "ndarray", counting)
    return count


def test_the_forward_takes_none(beyond: Callable[..., int]) -> None:
    vector = spec((3000,), "float32")
    options = {"bias_hbm": vector, "class_weight_hbm": vector, "label_smoothing": 0.1, "logit_softcap": 30.0}
    assert beyond(300, 256, 3000, "bfloat16", "forward", **options) == 0


@pytest.mark.parametrize("layout", ["vd", "dv"])
def test_the_backward_takes_the_sums_of_dx(beyond: Callable[..., int], layout: str) -> None:
    sizes = 300, 256, 3000, "bfloat16", "backward"
    result = beyond(*sizes, weight_layout=layout)
    assert 0 < result <= backward_bytes(300, 256, *choose_linear_tiling(*sizes, weight_layout=layout))


@pytest.mark.parametrize("layout", ["vd", "dv"])
def test_and_of_dw_of_a_block_where_positions_are_several(beyond: Callable[..., int], layout: str) -> None:
    blocks = {"position_block": 128, "class_block": 256}
    result = beyond(300, 256, 3000, "bfloat16", "backward", weight_layout=layout, **blocks)
    assert backward_bytes(300, 256, 300, 256) < result <= backward_bytes(300, 256, **blocks)


def test_no_choice_exceeds_what_a_core_may_take_for_dw() -> None:
    for features in (512, 4096, 16384):
        for positions in (4096, 16384):
            block = choose_linear_tiling(positions, features, 262144, "bfloat16", "backward")
            of_core = (backward_bytes(positions, features, *block) - 8 * positions * features) / 2
            assert of_core <= WEIGHT_SCRATCH_BYTES


@pytest.mark.parametrize(("positions", "scratch"), [(300, 2**29), (300, 128 * 4 * 3000), (700, 256 * 4 * 3000)])
def test_one_launch_takes_logits_of_a_block_and_sums(beyond: Callable[..., int], positions: int, scratch: int) -> None:
    features = 32  # so that the float32 sum of dW is smaller than the logits of all positions
    result = beyond(positions, features, 3000, "bfloat16", "forward_backward", scratch_bytes=scratch)
    message = one_launch_bytes(positions, features, 3000, scratch)
    assert np.isclose(result, message, rtol=0.2) and result <= message + SCALARS


def test_one_launch_of_few_logits_takes_no_sum_of_dw(beyond: Callable[..., int]) -> None:
    assert one_launch_bytes(256, 128, 1000) == 4 * (2 * 256 * 128 + 256 * 1000)
    assert beyond(256, 128, 1000, "bfloat16", "forward_backward") <= one_launch_bytes(256, 128, 1000) + SCALARS


STATED = {
    "forward": lambda **_: 0,
    "backward": backward_workspace_bytes,
    "forward_backward": one_launch_workspace_bytes,
}


@pytest.mark.parametrize("direction", STATED)
@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
def test_a_copy_of_x_for_gradients_and_none_of_w_and_the_bias(
    beyond: Callable[..., int], direction: str, compute: str
) -> None:
    operand = "float32" if compute == "bfloat16" else "float16"
    options = {"bias_hbm": spec((3000,), "float16"), "compute_dtype": getattr(nl, compute)}
    result = beyond(300, 256, 3000, operand, direction, **options)
    operands = {"input_hbm": spec((300, 256), operand), "weight_hbm": spec((3000, 256), operand), "cores": 2}
    assert result <= STATED[direction](**operands, **options)
    itemsize = 2 if compute == "bfloat16" else 4
    copies = itemsize * 300 * 256 if direction != "forward" else 0
    rounded = {"input_hbm": spec((300, 256), compute), "weight_hbm": spec((3000, 256), compute), "cores": 2}
    assert result - beyond(300, 256, 3000, compute, direction, bias_hbm=spec((3000,), "float32")) == copies
    assert STATED[direction](**operands, **options) - STATED[direction](**rounded) == copies


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_of_parts_sums_of_dx_of_a_part_and_a_sum_of_dw(beyond: Callable[..., int], dtype: str) -> None:
    operands = {"input_hbm": spec((768, 256), dtype), "weight_hbm": spec((3000, 256), dtype), "cores": 2}
    with shrunk(PlanLimits(positions=256)):
        result = beyond(768, 256, 3000, dtype, "backward", bias_hbm=spec((3000,), "float32"))
        message = backward_workspace_bytes(**operands)
    # Sums of dX and dX of a part, dW, and db.
    least = 256 * 256 * (8 + (2 if dtype == "bfloat16" else 4)) + 4 * 3000
    least += 4 * 3000 * 256 if dtype == "bfloat16" else 0
    assert least <= result <= message <= 2 * result
