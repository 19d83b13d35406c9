# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Logits of a student and a teacher."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

TYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
BETAS = (0.0, 1.0, 0.5, 0.1)


def pair(seed: int, shape: tuple[int, int], types: tuple[str, str] = ("float32", "float32")) -> tuple[Any, Any]:
    """Alike, as those of a student that has learned something."""
    draw = np.random.default_rng(seed)
    teacher = 3.0 * draw.standard_normal(shape)
    student = teacher + draw.standard_normal(shape)
    return student.astype(TYPES[types[0]]), teacher.astype(TYPES[types[1]])


def upstream(positions: int) -> Any:
    """Draw upstream gradients of either sign."""
    return np.random.default_rng(positions).standard_normal(positions).astype(np.float32)
