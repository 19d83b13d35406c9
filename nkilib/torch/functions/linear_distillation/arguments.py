# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tensor arguments of ``linear_distillation_loss``, grouped by model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nkilib.torch.dispatch.autocast import autocast_dtype


class ModelNames(NamedTuple):
    """The public function's argument names for the tensors of a model."""

    input: str
    weight: str
    bias: str


@dataclass(frozen=True)
class Model:
    """The hidden states and the output layer of one model.

    Attributes:
        names: the names of the arguments.
        input: the hidden states [..., D].
        weight: the weight [V, D].
        bias: the bias [V], or None.
    """

    names: ModelNames
    input: Tensor
    weight: Tensor
    bias: Tensor | None

    def tensors(self) -> dict[str, Tensor | None]:
        """Return the tensors by the names of the arguments."""
        return dict(zip(self.names, (self.input, self.weight, self.bias), strict=True))

    @property
    def positions(self) -> tuple[int, ...]:
        """The shape of the positions."""
        return tuple(self.input.shape[:-1])

    @property
    def kernel_bias(self) -> Tensor | None:
        """The bias in float32, as kernels take it."""
        return None if self.bias is None else self.bias.to(torch.float32)


STUDENT = ModelNames("input", "linear_weight", "linear_bias")
TEACHER = ModelNames("teacher_input", "teacher_weight", "teacher_bias")


@dataclass(frozen=True)
class DistillationArguments:
    """The tensor arguments of a call of ``linear_distillation_loss``, as the caller passed them, or this rank's parts
    of them.

    Attributes:
        student, teacher: the two models, over the same positions and classes.
        labels: integers [...], or None.
        row_weight: floating weights [...], or None.
        grad_weight_sum: the tensor to which the gradient of the student's weight is added, or None.
    """

    student: Model
    teacher: Model
    labels: Tensor | None
    row_weight: Tensor | None
    grad_weight_sum: Tensor | None

    def tensors(self) -> dict[str, Tensor | None]:
        """Return the tensors by the names of the arguments."""
        return {
            **self.student.tensors(),
            **self.teacher.tensors(),
            "labels": self.labels,
            "row_weight": self.row_weight,
            "grad_weight_sum": self.grad_weight_sum,
        }

    def rounding_dtype(self, compute_dtype: torch.dtype | None) -> torch.dtype | None:
        """Return the dtype that kernels round operands to for the products; None where nothing has to be rounded.

        Without ``compute_dtype`` and autocast, each model is multiplied in its own dtype; if hidden states and weight
        of a model have different dtypes, all operands are rounded to the dtype of the student's hidden states.

        Args:
            compute_dtype: the caller's argument; None means autocast's dtype if autocast is on.
        """
        models = (self.student, self.teacher)
        dtype = compute_dtype or autocast_dtype(self.student.input.device)
        if dtype is None:
            is_alike = all(model.input.dtype == model.weight.dtype for model in models)
            return None if is_alike else self.student.input.dtype
        operands = [tensor for model in models for tensor in (model.input, model.weight, model.bias)]
        return None if all(tensor is None or tensor.dtype == dtype for tensor in operands) else dtype
