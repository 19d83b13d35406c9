# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Descriptions of the operators ``torch.ops.nkilib.cross_entropy_*``.

Rows are positions: logits [N, V], targets [N] of any integer type or class probabilities [N, V]. PyTorch's shapes and
reductions are implemented in :mod:`.functional`, derivatives in :mod:`.autograd`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from nkilib.experimental.loss import choose_tiling, extended_cross_entropy_backward, extended_cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.operator import TILE_DTYPES, Call, Input, Operator, Output, as_first
from nkilib.torch.dispatch.register import register
from nkilib.torch.losses.target_indices import check_range, is_ignored, kernel_target

CROSS_ENTROPY: Final = Caller("cross_entropy", "input", "logits", "torch.nn.functional.cross_entropy")
VOCAB_PARALLEL: Final = Caller("vocab_parallel_cross_entropy", "logits_shard", "logits", CROSS_ENTROPY.instead)


@dataclass(frozen=True)
class Wanted:
    """The results that a call requests; ``with_logprob`` is an option of the forward operator only, and
    ``with_distance_sum`` of the operator for a shard of the vocabulary only.
    """

    with_logprob: bool = False
    with_distance_sum: bool = False
    with_argmax: bool = False
    with_entropy: bool = False


@dataclass(frozen=True)
class Columns:
    """The classes that the columns of the logits stand for; the fields have the names of the kernels' arguments.

    The maximum, log_sum and other reductions over classes that the backward takes are always those over all classes,
    not only over these columns.

    Attributes:
        first_class: the class of the first column.
        num_classes: V, the number of classes in all shards of the vocabulary; None if the columns are all classes.
    """

    first_class: int = 0
    num_classes: int | None = None

    def vocabulary(self, logits: Tensor) -> int:
        """Return V, the number of classes."""
        return logits.shape[1] if self.num_classes is None else self.num_classes


@dataclass(frozen=True)
class Sums:
    """``weight_sum``: the sum of the class weights of all shards, for label smoothing; None: the kernel computes it."""

    weight_sum: float | None = None


def _arguments(call: Call, direction: str) -> dict[str, Any]:
    """Return the keyword arguments that the forward and the backward kernel get beside the operator's inputs and
    options, or in place of them.
    """
    logits, target = call.first, call.tensor("target")
    vocabulary = call.group(Columns).vocabulary(logits)
    classes, ignore_index = kernel_target(target, call.options["ignore_index"], vocabulary)
    positions, columns = logits.shape
    tiling = choose_tiling(positions, columns, logits.dtype, direction, extended=True)
    return {
        "targets_hbm": classes.detach(),
        "ignore_index": ignore_index,
        "dtype": TILE_DTYPES[logits.dtype],
        **tiling._asdict(),
    }


def _log_probability(call: Call, results: Mapping[str, Tensor]) -> Tensor:
    ignored = is_ignored(call.tensor("target"), call.options["ignore_index"])
    return torch.where(ignored, 0.0, (results["target_logit"] - results["maximum"]) - results["log_sum"])


def _has_classes(call: Call) -> bool:
    """Return whether the targets are class indices; probabilities have no single target."""
    return not call.tensor("target").is_floating_point()


def _check_classes(call: Call) -> None:
    """Reject class indices out of range."""
    columns = call.group(Columns)
    caller = CROSS_ENTROPY if columns.num_classes is None else VOCAB_PARALLEL
    check_range(str(caller), call.tensor("target"), call.options["ignore_index"], columns.vocabulary(call.first))


def _weight_of_probabilities(call: Call, results: Mapping[str, Tensor]) -> Tensor | None:
    """Return the sum of each position's weighted and smoothed class probabilities, so that the backward need not read
    the probabilities twice to compute it; None for class indices.
    """
    return None if _has_classes(call) else results["position_weight"]


_LOGITS: Final = Input("logits", dimensions=2, dtypes=tuple(TILE_DTYPES))
_TARGET: Final = Input("target", keyword="targets_hbm")
_CLASS_WEIGHT: Final = Input("class_weight", is_optional=True)
_ON_REQUEST: Final = {name: f"with_{name}" for name in ("argmax", "entropy", "distance_sum")}
_RESULTS: Final = ("loss", "lse", "target_logit", "position_weight", *_ON_REQUEST, "maximum", "log_sum")


def _forward_arguments(call: Call) -> dict[str, Any]:
    return {**_arguments(call, "forward"), "with_log_sum": True}


# Results: functions.cross_entropy.results.ForwardResults.
FORWARD: Final = register(
    Operator(
        "cross_entropy_forward",
        inputs=(_LOGITS, _TARGET, _CLASS_WEIGHT),
        options=(LossOptions, Wanted),
        without=("with_distance_sum",),
        outputs=(
            Output("loss"),
            Output("lse", depends_on=("logits",)),
            Output("logprob", depends_on=("logits",), exists=_has_classes, computed=_log_probability),
            Output("position_weight"),
            Output("maximum"),
            Output("log_sum"),
            Output("argmax", torch.int32),
            Output("entropy", depends_on=("logits",)),
        ),
        kernel=extended_cross_entropy_forward,
        results=_RESULTS,
        on_request=_ON_REQUEST,
        arguments=_forward_arguments,
        check_values=_check_classes,
        instead=CROSS_ENTROPY.instead,
    )
)


def statistics_outputs(vocabulary: Callable[[Call], int]) -> tuple[Output, ...]:
    """Return the outputs that make up ``functions.cross_entropy.results.ShardStatistics``, with the values that they
    hold for a shard without classes.

    Args:
        vocabulary: a function that returns V for a call.
    """
    return (
        Output("maximum", fill=torch.finfo(torch.float32).min),
        Output("log_sum", fill=-torch.inf),
        Output("target_logit"),
        Output("position_weight"),
        Output("distance_sum"),
        Output("argmax", torch.int32, fill=vocabulary),
        Output("entropy"),
    )


STATISTICS: Final = register(
    Operator(
        "cross_entropy_shard_statistics",
        inputs=(_LOGITS, _TARGET, _CLASS_WEIGHT),
        options=(LossOptions, Columns, Wanted),
        without=("with_logprob", "lse_square_scale"),  # which take the target and the lse of all shards
        outputs=statistics_outputs(lambda call: call.group(Columns).vocabulary(call.first)),
        kernel=extended_cross_entropy_forward,
        results=_RESULTS,
        on_request=_ON_REQUEST,
        arguments=_forward_arguments,
        check_values=_check_classes,
        instead=CROSS_ENTROPY.instead,
    )
)


def _entropy_if_given(call: Call, results: Mapping[str, Tensor]) -> Tensor | None:
    return results["entropy"] if call.options["with_entropy"] else None


def _backward_arguments(call: Call) -> dict[str, Any]:
    lse = call.tensor("maximum") + call.tensor("log_sum")
    arguments = {**_arguments(call, "backward"), "lse_hbm": lse.detach().contiguous()}
    if call.tensors.get("grad_entropy") is None:  # the kernel takes both or neither
        arguments["entropy_hbm"] = None
    return arguments


BACKWARD: Final = register(
    Operator(
        "cross_entropy_backward",
        inputs=(
            _LOGITS,
            _TARGET,
            Input("maximum"),
            Input("log_sum"),
            Input("grad_loss"),
            Input("grad_lse", is_optional=True),
            Input("grad_logprob", is_optional=True),
            _CLASS_WEIGHT,
            Input("target_weight", is_optional=True, saved=_weight_of_probabilities),
            Input("entropy", is_optional=True, saved=_entropy_if_given),
            Input("grad_entropy", is_optional=True),
        ),
        options=(LossOptions, Columns, Sums),
        without=("exact_maximum",),  # the backward takes no maximum
        outputs=(Output("grad_logits", None, as_first),),
        kernel=extended_cross_entropy_backward,
        arguments=_backward_arguments,
        may_overwrite=True,
        check_values=_check_classes,
        instead=CROSS_ENTROPY.instead,
    )
)
