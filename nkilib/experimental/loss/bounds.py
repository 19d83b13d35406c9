# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Derived bounds on the difference between results of the plain cross-entropy kernels and the float64 reference.

For host code; needs numpy only.
"""

from nkilib.core.host.error_bounds import SMALLEST_NORMAL, UNIT
from nkilib.experimental.loss.cross_entropy.bounds import (
    BFLOAT16_ULPS,
    FORWARD_UNITS,
    GRADIENT_UNITS,
    TARGET_UNITS,
    bfloat16_allowance,
    error_over_bound,
    float16_allowance,
    forward_bounds,
    forward_error_over_bound,
    gradient_bound,
    gradient_error_over_bound,
)

__all__ = [
    "BFLOAT16_ULPS",
    "FORWARD_UNITS",
    "GRADIENT_UNITS",
    "SMALLEST_NORMAL",
    "TARGET_UNITS",
    "UNIT",
    "bfloat16_allowance",
    "error_over_bound",
    "float16_allowance",
    "forward_bounds",
    "forward_error_over_bound",
    "gradient_bound",
    "gradient_error_over_bound",
]
