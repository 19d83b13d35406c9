# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of distillation from the logits of student and teacher, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.experimental.loss import distillation_backward, distillation_forward
from nkilib.experimental.loss.distillation.host import (
    distillation_bound,
    distillation_gradient_bound,
    distillation_gradient_reference,
    distillation_reference,
)
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Reference, References

# A batch of 128 rows and a short one; two full chunks and the rest of a row.
_SIZES: Final = (140, 1100)
_CHUNK: Final = 500
_IGNORED: Final = 5
# Three batches on each core, the last one a short one; three chunks of a part.
_SPLIT: Final = {"partitions_per_position": 4, "chunk_size": 100}
_OF_LOSS: Final = ("beta", "temperature", "temperature_hbm")
_RESULTS: Final = ("loss", "moment", "student_shift", "student_sum", "teacher_shift", "teacher_sum")


def _arguments(type_name: str, **options: Any) -> dict[str, Any]:
    teacher = inputs.logits(*_SIZES, "float32")
    student = teacher + 0.5 * inputs.logits(*_SIZES, "float32")[::-1]
    student[3, -1] += 60.0  # a late maximum: the row is recomputed
    labels = np.arange(_SIZES[0], dtype=np.int32)
    return {
        "student_hbm": student.astype(inputs.TYPES[type_name][0]),
        "teacher_hbm": teacher,
        "labels_hbm": labels,
        "ignore_index": _IGNORED,
        "chunk_size": _CHUNK,
        **options,
    }


def _options_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"beta": arguments["beta"], "temperature": arguments.get("temperature_hbm", arguments.get("temperature"))}


def _is_split(arguments: Mapping[str, Any]) -> bool:
    """Tell whether positions lie on several partitions, which the bounds depend on."""
    return "partitions_per_position" in arguments


def _references(arguments: Mapping[str, Any]) -> References:
    pair, options = (arguments["student_hbm"], arguments["teacher_hbm"]), _options_of(arguments)
    exact = distillation_reference(*pair, arguments["labels_hbm"], ignore_index=_IGNORED, **options)
    return {"loss": Reference(exact, distillation_bound(*pair, **options, is_split=_is_split(arguments)))}


def _backward_arguments(type_name: str, **options: Any) -> dict[str, Any]:
    of_loss = {name: value for name, value in options.items() if name in _OF_LOSS}
    arguments = _arguments(type_name, **of_loss)
    saved = distillation_forward(**arguments)
    grad_loss = np.linspace(-1.0, 1.0, _SIZES[0], dtype=np.float32)
    vectors = {f"{name}_hbm": np.asarray(value) for name, value in zip(_RESULTS[1:], saved[1:], strict=True)}
    return {**arguments, **vectors, "grad_loss_hbm": grad_loss, **options}


def _backward_references(arguments: Mapping[str, Any]) -> References:
    triple = arguments["student_hbm"], arguments["teacher_hbm"], arguments["grad_loss_hbm"]
    options = _options_of(arguments)
    exact = distillation_gradient_reference(*triple, arguments["labels_hbm"], ignore_index=_IGNORED, **options)
    bound = distillation_gradient_bound(*triple, exact, **options, is_split=_is_split(arguments))
    return {"gradient": Reference(exact, bound)}


def cases() -> Iterator[Case]:
    """Yield every launch of this module."""
    of_positions = np.geomspace(0.25, 8.0, _SIZES[0]).astype(np.float32)
    for type_name in inputs.TYPES:
        for name, cores, options in (
            ("forward KL", 1, {"beta": 0.0, "temperature": 2.0}),
            ("reverse KL", 2, {"beta": 1.0, "temperature": 2.0}),
            ("Jensen-Shannon", 2, {"beta": 0.5, "temperature": 2.0}),
            ("temperatures of positions", 2, {"beta": 0.5, "temperature_hbm": of_positions}),
            ("several partitions a position", 2, {"beta": 0.0, "temperature": 2.0, **_SPLIT}),
            ("Jensen-Shannon, several partitions a position", 2, {"beta": 0.5, "temperature": 2.0, **_SPLIT}),
        ):
            yield Case(
                f"distillation_forward: {name}, {type_name}",
                False,
                _SIZES,
                distillation_forward,
                partial(_arguments, type_name, **options),
                _RESULTS,
                _references,
                cores,
            )
            yield Case(
                f"distillation_backward: {name}, in place, {type_name}",
                False,
                _SIZES,
                distillation_backward,
                partial(_backward_arguments, type_name, **options, inplace=True),
                ("gradient",),
                _backward_references,
                cores,
                "student_hbm",
            )
