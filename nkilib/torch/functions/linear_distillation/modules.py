# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``LinearDistillationLoss``: the module with the options of :func:`nkilib.torch.linear_distillation_loss`."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nkilib.torch.functions.linear_distillation.functional import linear_distillation_loss
from nkilib.torch.functions.linear_distillation.results import LinearDistillationOutputs


class LinearDistillationLoss(nn.Module):
    """:func:`~nkilib.torch.linear_distillation_loss` as a module whose call takes the tensors.

    Example::

        criterion = LinearDistillationLoss(beta=0.5, temperature=0.9)
        loss = criterion(hidden, student.lm_head.weight, teacher_hidden, teacher.lm_head.weight.detach(), labels)

    Args:
        direction, beta, temperature, temperature_squared, reduction, ignore_index, logit_scale, logit_softcap,
            teacher_logit_scale, teacher_logit_softcap, outputs, compute_dtype, memory_limit: see the function.
    """

    def __init__(
        self,
        *,
        direction: str = "forward",
        beta: float | None = None,
        temperature: float = 1.0,
        temperature_squared: bool = False,
        reduction: str = "mean",
        ignore_index: int = -100,
        logit_scale: float = 1.0,
        logit_softcap: float | None = None,
        teacher_logit_scale: float = 1.0,
        teacher_logit_softcap: float | None = None,
        outputs: Iterable[str] = (),
        compute_dtype: torch.dtype | None = None,
        memory_limit: int | None = None,
    ) -> None:
        super().__init__()
        self.direction = direction
        self.beta = beta
        self.temperature = temperature
        self.temperature_squared = temperature_squared
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.logit_scale = logit_scale
        self.logit_softcap = logit_softcap
        self.teacher_logit_scale = teacher_logit_scale
        self.teacher_logit_softcap = teacher_logit_softcap
        self.outputs = outputs if isinstance(outputs, str) or not isinstance(outputs, Iterable) else tuple(outputs)
        self.compute_dtype = compute_dtype
        self.memory_limit = memory_limit

    def forward(
        self,
        input: Tensor,
        linear_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        labels: Tensor | None = None,
        group: dist.ProcessGroup | None = None,
        *,
        linear_bias: Tensor | None = None,
        teacher_bias: Tensor | None = None,
        row_weight: Tensor | None = None,
        grad_weight_sum: Tensor | None = None,
    ) -> Tensor | LinearDistillationOutputs:
        """Return the loss; with ``outputs``, a named tuple of the loss and the student's scores."""
        return linear_distillation_loss(
            input,
            linear_weight,
            teacher_input,
            teacher_weight,
            labels,
            group,
            linear_bias=linear_bias,
            teacher_bias=teacher_bias,
            direction=self.direction,
            beta=self.beta,
            temperature=self.temperature,
            temperature_squared=self.temperature_squared,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            logit_scale=self.logit_scale,
            logit_softcap=self.logit_softcap,
            teacher_logit_scale=self.teacher_logit_scale,
            teacher_logit_softcap=self.teacher_logit_softcap,
            row_weight=row_weight,
            outputs=self.outputs,
            compute_dtype=self.compute_dtype,
            grad_weight_sum=grad_weight_sum,
            memory_limit=self.memory_limit,
        )
