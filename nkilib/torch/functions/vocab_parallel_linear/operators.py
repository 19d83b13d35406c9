# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The operators ``torch.ops.nkilib.linear_cross_entropy_shard_*``: those of the whole weight, for a part of its
classes.

Results that are summed over the parts are returned in float32: statistics of the positions, and the gradient of the
input.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch

from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.operator import Call, Input, Operator, Output
from nkilib.torch.dispatch.register import register
from nkilib.torch.functions.cross_entropy.operators import Columns, Sums, Wanted, statistics_outputs
from nkilib.torch.functions.linear_cross_entropy import operators as of_whole
from nkilib.torch.functions.linear_cross_entropy.operators import (
    LINEAR,
    Product,
    WantedGradients,
    shared_arguments,
    vocabulary,
)
from nkilib.torch.losses.target_indices import check_range

VOCAB_PARALLEL_LINEAR: Final = Caller("vocab_parallel_linear_cross_entropy", "input", "input", LINEAR.instead)


def _check_classes(call: Call) -> None:
    """Reject class indices out of range."""
    check_range(str(VOCAB_PARALLEL_LINEAR), call.tensor("target"), call.options["ignore_index"], vocabulary(call))


def _forward_arguments(call: Call) -> dict[str, Any]:
    return {**shared_arguments(call), "with_target": True, "with_log_sum": True}


# Results: functions.cross_entropy.results.ShardStatistics.
STATISTICS: Final = register(
    replace(
        of_whole.FORWARD,
        name="linear_cross_entropy_shard_statistics",
        inputs=of_whole.FORWARD.inputs[:-1],  # the backward of a shard writes to no input of this operator
        options=(LossOptions, Product, Columns, Wanted),
        without=(*of_whole.BACKWARD.without, "with_logprob", "lse_square_scale"),  # which take all shards
        outputs=statistics_outputs(vocabulary),
        arguments=_forward_arguments,
        check_values=_check_classes,
    )
)


def _backward_arguments(call: Call) -> dict[str, Any]:
    return {**of_whole.backward_arguments(call), "grad_input_float32": True}


def unrounded(output: Output) -> Output:
    """Return the output ``grad_input`` in float32, because it is summed over the ranks; any other output unchanged."""
    return replace(output, dtype=torch.float32) if output.name == "grad_input" else output


_TARGET_WEIGHT: Final = Input("target_weight", is_optional=True)


def _with_target_weight(operator: Operator) -> tuple[Input, ...]:
    """Return the inputs of a shard's backward: those of ``operator``, which is for the whole weight, with
    ``target_weight`` inserted before the inputs for the entropy.
    """
    first = operator.inputs[: -len(of_whole.OF_ENTROPY)]
    return (*first, _TARGET_WEIGHT, *of_whole.OF_ENTROPY)


_BACKWARD_OPTIONS: Final = (LossOptions, Product, Columns, Sums, WantedGradients)

BACKWARD: Final = register(
    replace(
        of_whole.BACKWARD,
        name="linear_cross_entropy_shard_backward",
        inputs=_with_target_weight(of_whole.BACKWARD),
        options=_BACKWARD_OPTIONS,
        outputs=tuple(unrounded(result) for result in of_whole.BACKWARD.outputs),
        arguments=_backward_arguments,
        check_values=_check_classes,
    )
)

# Adds the gradient of the weight to ``grad_weight_sum`` instead of returning it.
BACKWARD_ADDING: Final = register(
    replace(
        of_whole.BACKWARD_ADDING,
        name="linear_cross_entropy_shard_backward_adding",
        inputs=_with_target_weight(of_whole.BACKWARD_ADDING),
        options=_BACKWARD_OPTIONS,
        outputs=tuple(unrounded(result) for result in of_whole.BACKWARD_ADDING.outputs),
        arguments=_backward_arguments,
        check_values=_check_classes,
    )
)
