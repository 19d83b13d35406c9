# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The guarantees of the kernels; tests check each of them."""

from __future__ import annotations

from dataclasses import replace

from nkilib.base.guarantee import Guarantee

_NOTES = (
    "the exact bits of a row depend on the size of the axis, on whether it is the last axis, on the types and on "
    "chunk_size, but not on other rows"
)

SOFTMAX_FORWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place=None,
    error="16 u y max(1, m - x), u = 2^-23 and m the maximum, plus one rounding to the type",
    notes=_NOTES,
)
LOG_SOFTMAX_FORWARD = replace(
    SOFTMAX_FORWARD, error="16 u max(1, m - x, log d), u = 2^-23, d = sum exp(x - m), plus one rounding to the type"
)
SOFTMAX_BACKWARD = replace(
    SOFTMAX_FORWARD,
    in_place="grad_hbm",
    error="u |y| (2 |dy| + 16 sum |y dy|), u = 2^-23, plus one rounding to the type",
)
LOG_SOFTMAX_BACKWARD = replace(
    SOFTMAX_BACKWARD, error="u (2 |dy| + 16 exp(y) sum |dy|), u = 2^-23, plus one rounding to the type"
)
