# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small launches of distillation from logits, with every option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from nkilib.experimental import loss

# More columns than a shift is taken of, so that a row can be recomputed.
ROWS: Final = 5
CLASSES: Final = 600
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "forward": {"chunk_size": 250},
    "reverse": {"beta": 1.0, "temperature": 2.0},
    "mixture": {"beta": 0.3, "temperature": 0.5, "ignore_index": 2},
    "split positions": {"partitions_per_position": 4},
    "split positions, reverse": {"beta": 1.0, "partitions_per_position": 8, "chunk_size": 40},
    "split positions, mixture": {"beta": 0.3, "partitions_per_position": 4},
    "temperatures": {"temperature_hbm": np.linspace(0.5, 2.0, ROWS, dtype=np.float32)},
}


def _numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def launches_of_type(numpy_type: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, kernel and arguments of each, with a student of a type."""
    student = _numbers(1, ROWS, CLASSES)
    student[1, 590] = 60.0
    pair = {"student_hbm": student.astype(numpy_type), "teacher_hbm": _numbers(2, ROWS, CLASSES)}
    labels = {"labels_hbm": np.arange(ROWS, dtype=np.int32)}
    vectors = {"moment": 0.5, "student_shift": -2.0, "student_sum": 100.0, "teacher_shift": -2.0, "teacher_sum": 90.0}
    saved = {f"{name}_hbm": np.full(ROWS, value, np.float32) for name, value in vectors.items()}
    backward = {**saved, "grad_loss_hbm": _numbers(3, ROWS), "inplace": numpy_type is not np.float32}
    for name, options in OPTIONS.items():
        yield f"distillation_forward {name}", loss.distillation_forward, {**pair, **labels, **options}
        yield f"distillation_backward {name}", loss.distillation_backward, {**pair, **labels, **backward, **options}
