"""Tensors into the kernels and results out of them, the same for every device. Nothing here looks at values."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nkilib.experimental.loss import (
    choose_tiling,
    extended_cross_entropy_backward,
    extended_cross_entropy_forward,
)
from nkilib.nki import nl
from nkilib.torch.target_indices import kernel_target

# What the kernels take; tiles have the type of the logits.
TILE_DTYPES: Final = {torch.bfloat16: nl.bfloat16, torch.float32: nl.float32}


class LossOptions(NamedTuple):
    """The options that both kernels take, named as they name them.

    Attributes:
        ignore_index: target of positions that do not count; any integer.
        label_smoothing: share of the target probability that is spread over all classes, 0 to 1.
        logit_softcap: c > 0 replaces a logit x by c * tanh(x / c), except -inf; None leaves it.
        lse_square_scale: factor of lse^2 in the loss, 0 or more.
    """

    ignore_index: int = -100
    label_smoothing: float = 0.0
    logit_softcap: float | None = None
    lse_square_scale: float = 0.0


class ForwardResults(NamedTuple):
    """What the forward operator returns, [N] each; what was not asked for is empty, [0].

    Attributes:
        loss: float32, 0 at ignored positions.
        lse: float32, log-sum-exp of the (capped) logits.
        target_logit: float32, the (capped) logit of the target, 0 at ignored positions.
        position_weight: float32, what the position adds to the divisor of a mean.
        argmax: int32, the first class with the largest logit.
        entropy: float32, of the softmax of the (capped) logits, in nats.
    """

    loss: Tensor
    lse: Tensor
    target_logit: Tensor
    position_weight: Tensor
    argmax: Tensor
    entropy: Tensor


def empty_results(logits: Tensor, with_argmax: bool, with_entropy: bool) -> ForwardResults:
    """Results of the right shapes, types and device, with undefined values."""
    positions = logits.shape[0]

    def empty(length: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return logits.new_empty(length, dtype=dtype)

    return ForwardResults(
        loss=empty(positions),
        lse=empty(positions),
        target_logit=empty(positions),
        position_weight=empty(positions),
        argmax=empty(positions if with_argmax else 0, torch.int32),
        entropy=empty(positions if with_entropy else 0),
    )


def launch_forward(
    cores: int,
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    options: LossOptions,
    with_argmax: bool,
    with_entropy: bool,
) -> ForwardResults:
    """Run the forward kernel on ``cores`` cores; arguments as for the operator."""
    if logits.shape[0] == 0:  # a kernel needs a row
        return empty_results(logits, with_argmax, with_entropy)
    classes, ignore_index = kernel_target(target, options.ignore_index, logits.shape[1])
    results = list(
        extended_cross_entropy_forward[cores](
            logits.detach().contiguous(),
            classes.detach(),
            class_weight_hbm=_detached(class_weight),
            **_launch_options(logits, options, ignore_index, "forward"),
            with_argmax=with_argmax,
            with_entropy=with_entropy,
        )
    )
    if not with_argmax:
        results.insert(4, logits.new_empty(0, dtype=torch.int32))
    if not with_entropy:
        results.append(logits.new_empty(0, dtype=torch.float32))
    return ForwardResults(*results)


def launch_backward(
    cores: int,
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    grad_loss: Tensor,
    grad_lse: Tensor | None,
    grad_logprob: Tensor | None,
    class_weight: Tensor | None,
    options: LossOptions,
    inplace: bool,
) -> Tensor:
    """Run the backward kernel on ``cores`` cores; arguments as for the operators.

    Returns:
        The gradient, [N, V] in the type of the logits; in place, it has their memory.
    """
    given = logits.detach() if inplace else logits.detach().contiguous()
    if logits.shape[0] == 0:
        return given if inplace else torch.empty_like(given)
    classes, ignore_index = kernel_target(target, options.ignore_index, logits.shape[1])
    gradient: Tensor = extended_cross_entropy_backward[cores](
        given,
        classes.detach(),
        lse.detach().contiguous(),
        grad_loss.detach().contiguous(),
        grad_lse_hbm=_detached(grad_lse),
        grad_logprob_hbm=_detached(grad_logprob),
        class_weight_hbm=_detached(class_weight),
        **_launch_options(logits, options, ignore_index, "backward"),
        inplace=inplace,
    )
    if inplace and gradient is not given:  # a framework without writing in place returns another tensor
        given.copy_(gradient)
    return gradient


def _detached(tensor: Tensor | None) -> Tensor | None:
    """Without autograd, and dense, as kernels read it."""
    return None if tensor is None else tensor.detach().contiguous()


def _launch_options(logits: Tensor, options: LossOptions, ignore_index: int, direction: str) -> dict[str, Any]:
    positions, classes = logits.shape
    tiling = choose_tiling(positions, classes, logits.dtype, direction, extended=True)
    dtype = TILE_DTYPES[logits.dtype]
    return {**options._asdict(), **tiling._asdict(), "ignore_index": ignore_index, "dtype": dtype}
