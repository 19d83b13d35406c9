# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of distillation from logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.experimental.loss import distillation_backward, distillation_forward
from nkilib.experimental.loss.distillation.host.truth import (
    distillation_bound,
    distillation_gradient_bound,
    distillation_gradient_reference,
    distillation_reference,
)
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Truth, Truths

# A batch of 128 rows and a short one; two full chunks and what is left of a row.
_SIZES: Final = (140, 1100)
_CHUNK: Final = 500
_IGNORED: Final = 5
_OF_LOSS: Final = ("beta", "temperature")
_RESULTS: Final = ("loss", "moment", "student_shift", "student_sum", "teacher_shift", "teacher_sum")


def _arguments(type_name: str, **options: Any) -> dict[str, Any]:
    teacher = inputs.logits(*_SIZES, "float32")
    student = teacher + 0.5 * inputs.logits(*_SIZES, "float32")[::-1]
    student[3, -1] += 60.0  # a maximum that comes late: the row is computed anew
    labels = np.arange(_SIZES[0], dtype=np.int32)
    return {
        "student_hbm": student.astype(inputs.TYPES[type_name][0]),
        "teacher_hbm": teacher,
        "labels_hbm": labels,
        "ignore_index": _IGNORED,
        "chunk_size": _CHUNK,
        **options,
    }


def _truths(given: Mapping[str, Any]) -> Truths:
    pair, options = (given["student_hbm"], given["teacher_hbm"]), {name: given[name] for name in _OF_LOSS}
    exact = distillation_reference(*pair, given["labels_hbm"], ignore_index=_IGNORED, **options)
    return {"loss": Truth(exact, distillation_bound(*pair, **options))}


def _backward_arguments(type_name: str, **options: Any) -> dict[str, Any]:
    of_loss = {name: value for name, value in options.items() if name in _OF_LOSS}
    given = _arguments(type_name, **of_loss)
    saved = distillation_forward(**given)
    grad_loss = np.linspace(-1.0, 1.0, _SIZES[0], dtype=np.float32)
    vectors = {f"{name}_hbm": np.asarray(value) for name, value in zip(_RESULTS[1:], saved[1:], strict=True)}
    return {**given, **vectors, "grad_loss_hbm": grad_loss, **options}


def _backward_truths(given: Mapping[str, Any]) -> Truths:
    triple = given["student_hbm"], given["teacher_hbm"], given["grad_loss_hbm"]
    options = {name: given[name] for name in _OF_LOSS}
    exact = distillation_gradient_reference(*triple, given["labels_hbm"], ignore_index=_IGNORED, **options)
    return {"gradient": Truth(exact, distillation_gradient_bound(*triple, exact, **options))}


def cases() -> Iterator[Case]:
    """All of them."""
    for type_name in inputs.TYPES:
        for name, beta, cores in (("forward KL", 0.0, 1), ("reverse KL", 1.0, 2), ("Jensen-Shannon", 0.5, 2)):
            options = {"beta": beta, "temperature": 2.0}
            yield Case(
                f"distillation_forward: {name}, {type_name}",
                False,
                _SIZES,
                distillation_forward,
                partial(_arguments, type_name, **options),
                _RESULTS,
                _truths,
                cores,
            )
            yield Case(
                f"distillation_backward: {name}, in place, {type_name}",
                False,
                _SIZES,
                distillation_backward,
                partial(_backward_arguments, type_name, **options, inplace=True),
                ("gradient",),
                _backward_truths,
                cores,
                "student_hbm",
            )
