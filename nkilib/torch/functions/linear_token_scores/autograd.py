# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The derivatives of the operators."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from nkilib.torch.dispatch.autograd import Derivative, differentiate, refuse_graph
from nkilib.torch.functions.linear_token_scores.operators import (
    BACKWARD,
    BACKWARD_ADDING,
    FORWARD,
    SHARD_BACKWARD,
    SHARD_BACKWARD_ADDING,
)
from nkilib.torch.functions.linear_token_scores.results import ScoreResults
from nkilib.torch.functions.vocab_parallel_linear.autograd import gradients_of_shard, save_of_shard, saved_of_shard

DERIVATIVE: Final = differentiate(FORWARD, BACKWARD, adding=BACKWARD_ADDING)

_OF_SHARD: Final = Derivative(FORWARD, SHARD_BACKWARD, adding=SHARD_BACKWARD_ADDING)
# The differentiable results; the others are constants.
DIFFERENTIABLE: Final = ("logprob", "lse", "entropy")


class VocabParallelTokenScores(torch.autograd.Function):
    """Returns scores that have been computed over all ranks, and gives them a derivative with respect to this rank's
    tensors.

    The arguments of ``apply`` are the inputs of the forward operator with this rank's classes, the results, the options
    of the operators, and the process group.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        linear_bias: Tensor | None,
        grad_weight_sum: Tensor | None,
        results: ScoreResults,
        options: dict[str, Any],
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, ...]:
        tensors = {
            "input": input,
            "linear_weight": linear_weight,
            "target": target,
            "maximum": results.maximum,
            "log_sum": results.log_sum,
            "linear_bias": linear_bias,
            "entropy": results.entropy if options["with_entropy"] else None,
        }
        returned: dict[str, Tensor] = {name: getattr(results, name) for name in DIFFERENTIABLE}
        save_of_shard(ctx, _OF_SHARD, tensors, options, returned, grad_weight_sum)
        ctx.group = group
        return tuple(returned.values())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_graph(SHARD_BACKWARD)  # a sum over ranks without a graph would be taken for a constant
        call, _ = saved_of_shard(ctx, _OF_SHARD)
        upstream = _OF_SHARD.upstream(call, dict(zip(DIFFERENTIABLE, grads, strict=True)))
        return *gradients_of_shard(ctx, _OF_SHARD, call.replaced(upstream), bool(upstream)), *[None] * 3
