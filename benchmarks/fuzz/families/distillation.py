# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random calls of ``distillation_loss``: divergences of a student from a teacher, from the logits of both."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.fuzz.call import UPSTREAMS, Call, Expected, Results
from benchmarks.fuzz.draw import Array, Draw, array_of, laid_out, normal, numpy_dtype, tensor_of
from benchmarks.fuzz.families.common import dtype_of, machine, stored, summed
from nkilib.core.host.error_bounds import UNIT
from nkilib.experimental.loss.distillation.host import (
    distillation_bound,
    distillation_gradient_bound,
    distillation_gradient_reference,
    distillation_reference,
)

_IGNORED = -100


def drawn(draw: Draw, function: str) -> Call:
    """Draw a call of ``distillation_loss``."""
    positions, vocabulary = draw.sizes((1, 1_500), (2, 160_000))
    split = draw.one_of([size for size in (1, 2, 3) if positions % size == 0])
    shape: tuple[int, ...] = (
        (vocabulary,) if positions == 1 and draw.chance(0.5) else (split, positions // split, vocabulary)
    )
    shape = shape[1:] if shape[0] == 1 and len(shape) == 3 else shape
    (name, dtype), (other_name, other) = dtype_of(draw), dtype_of(draw)
    spread = draw.one_of((1.0, 3.0, 10.0))
    written = "student_logits" if draw.chance(0.25) else None
    values = spread * normal(draw, *shape)
    student, layout = (tensor_of(values, dtype), "contiguous")
    if written is None:
        student, layout = laid_out(draw, student)
    teacher, _ = laid_out(draw, tensor_of(values * np.float32(0.5) + spread * normal(draw, *shape), other))
    options: dict[str, Any] = {
        "temperature": draw.one_of((1.0, 1.0, 2.0, 0.7)),
        "direction": draw.one_of(("forward", "reverse")),
        "beta": draw.one_of((None, None, 0.0, 0.5, 0.1, 1.0)),
        "reduction": draw.one_of(("mean", "batchmean", "sum", "none")),
        "temperature_squared": draw.chance(0.3),
    }
    labels = _labels(draw, shape[:-1]) if draw.chance(0.5) else None
    module = "DistillationLoss" if written is None and draw.chance(0.25) else None
    settings: dict[str, Any] = {"shape": shape, "dtype": name, "teacher": other_name, "spread": spread, **options}
    settings |= {"labels": labels is not None, "layout": layout, "inplace": written is not None, "module": module}
    settings |= {"upstream": draw.one_of(UPSTREAMS), **machine(draw)}
    arguments = {"student_logits": student, "teacher_logits": teacher, **options}
    arguments |= {} if labels is None else {"labels": tensor_of(labels).long()}
    arguments |= {} if written is None else {"inplace": True}
    reference = _Reference(array_of(student), array_of(teacher), labels, options, numpy_dtype(dtype))
    return Call(
        function,
        arguments,
        ("student_logits",),
        reference,
        settings,
        settings["upstream"],
        written=written,
        module=module,
    )


def _labels(draw: Draw, shape: tuple[int, ...]) -> Array:
    labels = np.where(draw.rng.random(shape) < 0.3, _IGNORED, 1).astype(np.float32)
    if labels.ndim:
        labels.reshape(-1)[0] = 1
    else:
        labels = np.ones(shape, np.float32)
    return labels


class _Reference:
    def __init__(
        self, student: Array, teacher: Array, labels: Array | None, options: dict[str, Any], dtype: np.dtype[Any]
    ) -> None:
        self._shape, self._dtype = student.shape, dtype
        self._student, self._teacher = (array.reshape(-1, array.shape[-1]) for array in (student, teacher))
        self._options = options
        self._counts = np.ones(len(self._student), bool) if labels is None else labels.reshape(-1) != _IGNORED
        beta = options["beta"]
        self._beta = (0.0 if options["direction"] == "forward" else 1.0) if beta is None else beta

    def __call__(self, results: Results) -> dict[str, Expected]:
        return {
            "loss": self._loss(),
            "grad_student_logits": self._gradient(results.upstream["loss"].astype(np.float64)),
        }

    def _factor(self) -> float:
        """The factor of the losses of positions before they are stored, and of the summed ones."""
        temperature = self._options["temperature"]
        return float(temperature**2) if self._options["temperature_squared"] else 1.0

    def _divisor(self) -> float:
        shape, reduction = self._shape, self._options["reduction"]
        batch = shape[0] if len(shape) > 1 else 1
        return {"mean": float(self._counts.sum()), "batchmean": float(batch)}.get(reduction, 1.0)

    def _loss(self) -> Expected:
        temperature, factor = self._options["temperature"], self._factor()
        value = factor * np.where(
            self._counts, distillation_reference(self._student, self._teacher, None, self._beta, temperature), 0.0
        )
        error = factor * distillation_bound(self._student, self._teacher, self._beta, temperature) + UNIT * np.abs(
            value
        )
        if self._options["reduction"] == "none":
            return Expected(value.reshape(self._shape[:-1]), error.reshape(self._shape[:-1]), np.float32)
        total, off = summed(value, error)
        divisor = self._divisor()
        return Expected(np.array(total / divisor), np.array(off / divisor + UNIT * abs(total / divisor)), np.float32)

    def _gradient(self, upstream: Array) -> Expected:
        temperature = self._options["temperature"]
        item = np.broadcast_to(self._factor() / self._divisor() * upstream.reshape(-1), len(self._student))
        item = np.where(self._counts, item, 0.0)
        exact = distillation_gradient_reference(self._student, self._teacher, item, None, self._beta, temperature)
        # Rounding to the type is granted last; the upstream gradient is a quotient and a product of float32 numbers.
        float32 = self._student.astype(np.float32)
        error = distillation_gradient_bound(float32, self._teacher, item, exact, self._beta, temperature)
        error = error + 2.0 * UNIT * np.abs(exact)
        error = stored(exact, error, self._dtype)
        return Expected(exact.reshape(self._shape), error.reshape(self._shape), self._dtype)
