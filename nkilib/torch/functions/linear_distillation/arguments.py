# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The arguments of ``linear_distillation_loss`` that are tensors, by model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nkilib.torch.dispatch.autocast import autocast_dtype


class ModelNames(NamedTuple):
    """What the public function calls the tensors of a model."""

    input: str
    weight: str
    bias: str


@dataclass(frozen=True)
class Model:
    """Hidden states and output layer of one model.

    Attributes:
        names: of the arguments.
        input: [..., D].
        weight: [V, D].
        bias: [V], or None.
    """

    names: ModelNames
    input: Tensor
    weight: Tensor
    bias: Tensor | None

    def tensors(self) -> dict[str, Tensor | None]:
        """By the names of the arguments."""
        return dict(zip(self.names, (self.input, self.weight, self.bias), strict=True))

    @property
    def positions(self) -> tuple[int, ...]:
        """The shape of the positions."""
        return tuple(self.input.shape[:-1])

    @property
    def kernel_bias(self) -> Tensor | None:
        """In float32, as kernels take it."""
        return None if self.bias is None else self.bias.to(torch.float32)


STUDENT = ModelNames("input", "linear_weight", "linear_bias")
TEACHER = ModelNames("teacher_input", "teacher_weight", "teacher_bias")


@dataclass(frozen=True)
class DistillationArguments:
    """As the caller gave them, or the parts of this rank.

    Attributes:
        student, teacher: both models, over the same positions and classes.
        labels: integers [...], or None.
        row_weight: [...] floating, or None.
        grad_weight_sum: to which the gradient of the student's weight is added, or None.
    """

    student: Model
    teacher: Model
    labels: Tensor | None
    row_weight: Tensor | None
    grad_weight_sum: Tensor | None

    def tensors(self) -> dict[str, Tensor | None]:
        """By the names of the arguments."""
        return {
            **self.student.tensors(),
            **self.teacher.tensors(),
            "labels": self.labels,
            "row_weight": self.row_weight,
            "grad_weight_sum": self.grad_weight_sum,
        }

    def rounding_dtype(self, compute_dtype: torch.dtype | None) -> torch.dtype | None:
        """The type that kernels round operands to for the products; None where nothing has to be rounded.

        Where nobody says, each model is multiplied in its own type; if hidden states and weight of a model have unlike
        types, all are rounded to that of the student's hidden states.

        Args:
            compute_dtype: of the caller's arguments; None is autocast's, if that is on.
        """
        models = (self.student, self.teacher)
        dtype = compute_dtype or autocast_dtype(self.student.input.device)
        if dtype is None:
            is_alike = all(each.input.dtype == each.weight.dtype for each in models)
            return None if is_alike else self.student.input.dtype
        operands = [tensor for each in models for tensor in (each.input, each.weight, each.bias)]
        return None if all(each is None or each.dtype == dtype for each in operands) else dtype
