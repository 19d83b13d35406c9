# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The work of the kernels: bytes that have to cross HBM, for each gradient that is wanted."""

from __future__ import annotations

from typing import Any

import pytest

from nkilib.experimental.loss.linear_cross_entropy.registry_entry import (
    linear_backward_work,
    linear_forward_backward_work,
)
from nkilib.simulator import spec

_N, _D, _V = 256, 64, 1000
_OPERANDS = {
    "input_hbm": spec((_N, _D), "bfloat16"),
    "weight_hbm": spec((_V, _D), "bfloat16"),
    "targets_hbm": spec((_N,), "int32"),
}
_BIAS = {"bias_hbm": spec((_V,), "float32")}
_UPSTREAM = {"lse_hbm": spec((_N,), "float32"), "grad_loss_hbm": spec((_N,), "float32")}
_READ = 2 * _N * _D + 2 * _V * _D + 4 * _N
_GRADIENTS = 2 * _N * _D + 2 * _V * _D


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, _GRADIENTS),
        ({"grad_input_wanted": False}, 2 * _V * _D),
        ({"grad_weight_wanted": False}, 2 * _N * _D),
        (_BIAS, 4 * _V + _GRADIENTS + 4 * _V),
        ({**_BIAS, "grad_bias_wanted": True}, 4 * _V + _GRADIENTS + 4 * _V),
        ({**_BIAS, "grad_bias_wanted": False}, 4 * _V + _GRADIENTS),
    ],
    ids=str,
)
def test_bytes_of_each_gradient_that_is_wanted(given: dict[str, Any], expected: int) -> None:
    """A bias is read, and its gradient written; both are float32."""
    of_backward = linear_backward_work(**_OPERANDS, **_UPSTREAM, **given)
    assert of_backward.hbm_bytes == _READ + 2 * 4 * _N + expected
    # Loss and lse are written in place of lse and the upstream gradient, which are read.
    of_both = linear_forward_backward_work(**_OPERANDS, **given)
    assert of_both.hbm_bytes == _READ + 2 * 4 * _N + expected
    products = 1 + given.get("grad_input_wanted", True) + given.get("grad_weight_wanted", True)
    assert of_backward.multiply_adds == of_both.multiply_adds == products * _N * _D * _V


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"grad_input_float32": True}, 4 * _N * _D + 2 * _V * _D),
        ({"grad_weight_sum_hbm": spec((_V, _D), "float32")}, 2 * _N * _D + 2 * 4 * _V * _D),
    ],
    ids=["float32 dX", "sum of dW"],
)
def test_bytes_of_float32_gradients(given: dict[str, Any], expected: int) -> None:
    """A sum that dW is added to is read and written."""
    assert linear_backward_work(**_OPERANDS, **_UPSTREAM, **given).hbm_bytes == _READ + 2 * 4 * _N + expected
