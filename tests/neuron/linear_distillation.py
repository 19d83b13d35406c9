# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small launches of distillation from hidden states, with every option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from nkilib.experimental import loss
from nkilib.nki import nl

ROWS: Final = 5
CLASSES: Final = 37
STUDENT_FEATURES: Final = 20
TEACHER_FEATURES: Final = 24


def _numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


_BIASES: Final = {"student_bias_hbm": _numbers(3, CLASSES), "teacher_bias_hbm": _numbers(4, CLASSES)}
_SCALED: Final[dict[str, Any]] = {
    **_BIASES,
    "temperature": 0.7,
    "student_logit_scale": 0.5,
    "student_logit_softcap": 2.0,
    "teacher_logit_scale": 1.5,
    "teacher_logit_softcap": 3.0,
}
_TRANSPOSED: Final = {
    "student_weight_layout": "dv",
    "student_weight_hbm": _numbers(1, STUDENT_FEATURES, CLASSES),
    "teacher_weight_layout": "dv",
    "teacher_weight_hbm": _numbers(2, TEACHER_FEATURES, CLASSES),
}
# What all kernels take; beta is 0 in the forward and the backward unless it is given.
_COMMON: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "mixture": {"beta": 0.3},
    "[D, V]": _TRANSPOSED,
    "soft caps, temperature, scales, biases": _SCALED,
    "temperatures": {**_BIASES, "temperature_hbm": np.linspace(0.5, 2.0, ROWS, dtype=np.float32)},
    "tiling": {"position_block": 128, "class_block": 128},
    "products in bfloat16": {**_BIASES, "compute_dtype": nl.bfloat16},
}
_LABELS: Final[dict[str, Any]] = {
    "labels_hbm": np.arange(ROWS, dtype=np.int32),
    "row_weight_hbm": np.abs(_numbers(5, ROWS)),
    "ignore_index": 2,
}
_OF_LABELS: Final[dict[str, dict[str, Any]]] = {
    **_COMMON,
    "reverse": {"beta": 1.0},
    "labels and weights": {"beta": 1.0, **_LABELS},
    "shard": {"beta": 1.0, **_LABELS, "first_class": 2, "num_classes": 2 + CLASSES},
}
_FORWARD: Final = {
    **_OF_LABELS,
    "every result": {**_LABELS, "with_logprob": True, "with_target": True},
    "products twice": {"beta": 0.3, "memory_limit": 0},
}
_BACKWARD: Final = {
    **_OF_LABELS,
    "every gradient": {**_BIASES, **_LABELS, "grad_logprob_hbm": _numbers(6, ROWS)},
    "input's alone": {"grad_weight_wanted": False},
    "weight's alone": {**_BIASES, "grad_input_wanted": False, "grad_bias_wanted": False},
    "added to a sum": {"grad_weight_sum_hbm": _numbers(7, CLASSES, STUDENT_FEATURES)},
    "input's in float32": {"grad_input_float32": True},
}


def _statistics() -> dict[str, np.ndarray]:
    """About those of all classes."""
    results = {}
    for name in ("student", "teacher"):
        results |= {f"{name}_maximum_hbm": np.full(ROWS, 8.0, np.float32)}
        results |= {f"{name}_log_sum_hbm": np.full(ROWS, 1.5, np.float32)}
    return results


def launches_of_type(numpy_type: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, kernel and arguments of each, with operands of a type."""
    base = {
        "student_input_hbm": _numbers(0, ROWS, STUDENT_FEATURES),
        "student_weight_hbm": _numbers(1, CLASSES, STUDENT_FEATURES),
        "teacher_input_hbm": _numbers(8, ROWS, TEACHER_FEATURES),
        "teacher_weight_hbm": _numbers(2, CLASSES, TEACHER_FEATURES),
    }
    upstream = {"moment_hbm": np.full(ROWS, 0.5, np.float32), "grad_divergence_hbm": _numbers(9, ROWS)}
    groups = (
        (loss.linear_distillation_forward, base, _FORWARD),
        (loss.linear_distillation_mixture, {**base, **_statistics()}, _COMMON),
        (loss.linear_distillation_backward, {**base, **_statistics(), **upstream}, _BACKWARD),
    )
    for kernel, common, cases in groups:
        for name, options in cases.items():
            arguments = {**common, **options}
            yield (
                f"{kernel.__name__} {name}",
                kernel,
                {**arguments, **{item: arguments[item].astype(numpy_type) for item in base}},
            )
