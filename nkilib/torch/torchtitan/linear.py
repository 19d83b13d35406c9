# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses of TorchTitan from hidden states and the output layer, without logits, not even for a chunk of tokens.

:class:`LinearCrossEntropyLoss` computes the cross-entropy, and :func:`compute_linear_logprobs` log-probabilities and
entropies. ``install`` uses their parts, :func:`linear_loss`, :func:`logprobs_of` and :func:`loss_by_head`.
:func:`checked_head` and :func:`reason_against` check whether the kernels take an output layer.

The losses equal those that :mod:`nkilib.torch.torchtitan.losses` computes from the output layer's logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from nkilib.core.host.options import check_flags
from nkilib.torch.dispatch.dtensors import dtensor
from nkilib.torch.functions.linear_cross_entropy.functional import linear_cross_entropy
from nkilib.torch.functions.linear_token_scores.functional import linear_token_scores
from nkilib.torch.functions.output_layer import is_fully_sharded, results_in_forward
from nkilib.torch.torchtitan.losses import (
    IGNORE_INDEX,
    MTP_SCALE,
    Prediction,
    Tensors,
    predictions_of,
    weighted_sum,
)

# A function from hidden states to results, each of the shape of the labels.
Scored = Callable[[Tensor], tuple[Tensor, ...]]
# A function from these results to a scalar loss.
Reduced = Callable[..., Tensor]


def reason_against(head: nn.Module) -> tuple[type[Exception], str] | None:
    """Return the type and the message of the error for an output layer that the losses of this module do not support;
    None if they support the layer.
    """
    if not isinstance(head, nn.Linear) or type(head).forward is not nn.Linear.forward:
        return TypeError, f"lm_head must be a torch.nn.Linear with the forward of that, got {type(head).__qualname__}"
    if any(getattr(parameter, "_is_flat_param", False) for parameter in head.parameters()):  # as FSDP1 marks its own
        return NotImplementedError, "lm_head must not be sharded by FullyShardedDataParallel"
    weight = dtensor(head.weight)
    if weight is None:
        return None
    several = [
        name
        for at, name in enumerate(weight.device_mesh.mesh_dim_names or [""] * weight.device_mesh.ndim)
        if weight.device_mesh.size(at) > 1
    ]
    if "tp" in several or (several and not is_fully_sharded(head)):
        return NotImplementedError, f"lm_head.weight must be whole on every rank, got placements {weight.placements}"
    return None


def checked_head(caller: str, head: nn.Module) -> nn.Linear:
    """Return the output layer, after a check that the losses of this module support it.

    The layer must compute a product and a bias, and its weights must be whole on every rank, or sharded by a
    ``fully_shard`` that was applied to this layer itself.

    Raises:
        TypeError: it is not a ``torch.nn.Linear``, or computes something else.
        NotImplementedError: its weights are sharded by something other than its own ``fully_shard``, or by FSDP1.
    """
    reason = reason_against(head)
    if reason is not None:
        error, message = reason
        raise error(f"{caller}: {message}; take nkilib.torch.torchtitan.ChunkedCrossEntropyLoss")
    return cast(nn.Linear, head)


def _results(head: nn.Module, hidden: Tensor, labels: Tensor, scored: Scored) -> tuple[Tensor, ...]:
    return results_in_forward(head, hidden, labels, lambda hidden, *_: scored(hidden))


def loss_by_head(head: nn.Module, hidden: Tensor, labels: Tensor, scored: Scored, reduced: Reduced) -> Tensor:
    """Return a loss that ``reduced`` computes from the results of ``scored``, which is called while the weights of
    ``head`` are whole.

    Args:
        head: the output layer.
        hidden: the hidden states [..., D].
        labels: the labels of the same tokens.
        scored: a function of hidden states [tokens, D] that uses the weights of ``head``. If ``fully_shard`` was
            applied to ``head``, ``scored`` runs within a call of ``head``, whose hooks gather the weights.
        reduced: a function of the results of ``scored`` that returns the loss.
    """
    loss = reduced(*_results(head, hidden.flatten(0, -2), labels, scored))
    if is_fully_sharded(head) and not torch.is_grad_enabled():
        head.reshard()  # type: ignore[operator]  # as the backward does
    return loss


def logprobs_of(head: nn.Linear, hidden: Tensor, labels: Tensor, *, with_entropy: bool) -> tuple[Tensor, ...]:
    """Return a tuple of the labels' log-probabilities and, if ``with_entropy``, the entropies, each of the shape of
    ``labels``.

    The entropies are detached, so no gradient flows through them.
    """
    scores = linear_token_scores(
        hidden.view(*labels.shape, hidden.shape[-1]),
        head.weight,
        labels,
        linear_bias=head.bias,
        ignore_index=IGNORE_INDEX,
        outputs=("entropy",) if with_entropy else (),
    )
    return (scores.logprob,) if scores.entropy is None else (scores.logprob, scores.entropy.detach())


def linear_loss(
    head: nn.Linear,
    predictions: Sequence[Prediction],
    global_valid_tokens: Tensor | float | None,
    memory_limit: int | None = None,
) -> Tensor:
    """Return the loss of :class:`LinearCrossEntropyLoss`: the weighted sum of the predictions' losses, divided by
    ``global_valid_tokens`` unless it is None.

    Args:
        head: an output layer that :func:`checked_head` accepts.
        predictions: hidden states with labels and weights, one item for each depth of multi-token prediction.
        global_valid_tokens: the number of valid tokens on all ranks.
        memory_limit: see :class:`LinearCrossEntropyLoss`.
    """
    hidden = [each.pred.flatten(0, -2) for each in predictions]
    # One call of the head for all predictions, so that fully_shard gathers its weights once.
    rows = hidden[0] if len(hidden) == 1 else torch.cat(hidden)
    sizes = [each.shape[0] for each in hidden]

    def scored(rows: Tensor) -> tuple[Tensor, ...]:
        # Summed here, because a single launch with gradients returns no per-position losses.
        return tuple(
            linear_cross_entropy(
                part,
                head.weight,
                each.labels.flatten(),
                linear_bias=head.bias,
                reduction="sum",
                ignore_index=IGNORE_INDEX,
                memory_limit=memory_limit,
            )
            for part, each in zip(torch.split(rows, sizes), predictions, strict=True)
        )

    def reduced(*losses: Tensor) -> Tensor:
        loss = weighted_sum(predictions, losses)
        return loss if global_valid_tokens is None else loss / global_valid_tokens

    return loss_by_head(head, rows, predictions[0].labels, scored, reduced)


@dataclass
class LinearCrossEntropyLoss:
    """Output layer and cross-entropy without logits, with the signature of TorchTitan 0.3: ``(hidden, labels,
    global_valid_tokens) -> (loss, {})``.

    It replaces TorchTitan's ``ChunkedLossWrapper`` around ``CrossEntropyLoss`` or ``MTPLoss``, and returns the loss
    that :class:`~nkilib.torch.torchtitan.CrossEntropyLoss` returns for ``lm_head(hidden)`` in float32. With multi-token
    prediction, hidden states and labels are tuples. The gradients are kept until the backward of the loss, which may
    scale them. After ``fully_shard(lm_head)`` or ``fully_shard([norm, lm_head])``, the loss runs inside a call of
    ``lm_head``, whose hooks gather its weights.

    Attributes:
        lm_head: the output layer, a ``torch.nn.Linear``.
        memory_limit: the option of :func:`nkilib.torch.linear_cross_entropy`: bytes for loss and gradients in a single
            launch. The predictions of a tuple have this limit each.
        mtp_scale: the sum of the weights of all predictions of a tuple but the first.
    """

    lm_head: nn.Module | None = None
    memory_limit: int | None = None
    mtp_scale: float = MTP_SCALE

    def set_lm_head(self, lm_head: nn.Module) -> None:
        """Set the output layer, before the first call.

        Raises:
            TypeError, NotImplementedError: the kernels do not compute this layer.
        """
        self.lm_head = checked_head("LinearCrossEntropyLoss", lm_head)

    def __call__(
        self, pred: Tensors, labels: Tensors, global_valid_tokens: Tensor | float | None = None, **kwargs: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of this rank's valid tokens, divided by ``global_valid_tokens``, and no metrics.

        Args:
            pred: hidden states [..., D], the input of the output layer; bfloat16, float16 or float32; or a tuple of at
                least two of them.
            labels: the labels [...] of the same tokens, in [0, V) or -100; a tuple where ``pred`` is one.
            global_valid_tokens: the number of valid tokens on all ranks; a tensor is not read. None returns the sum.
            kwargs: ignored, as in TorchTitan.

        Returns:
            The loss, a float32 scalar tensor, and an empty dict.

        Raises:
            RuntimeError: no output layer is set.
            ValueError: a tuple together with a tensor, or tuples of different lengths or of one tensor.
            TypeError, ValueError, IndexError, NotImplementedError: see :func:`nkilib.torch.linear_cross_entropy`.
        """
        if self.lm_head is None:
            raise RuntimeError(
                "LinearCrossEntropyLoss: the output layer must be set, and is not; call set_lm_head, and have the "
                "model return its hidden states"
            )
        head = checked_head("LinearCrossEntropyLoss", self.lm_head)
        predictions = predictions_of("LinearCrossEntropyLoss", pred, labels, self.mtp_scale)
        return linear_loss(head, predictions, global_valid_tokens, self.memory_limit), {}


def compute_linear_logprobs(
    hidden: Tensor, lm_head: nn.Module, labels: Tensor, *, return_entropy: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute the log-probability of every label, and optionally the entropy, from hidden states.

    It returns the values that :func:`~nkilib.torch.torchtitan.compute_logprobs` returns for ``lm_head(hidden)`` in
    float32. The entropy is a constant for autograd, as in that function.

    Args:
        hidden: [..., D], bfloat16, float16 or float32.
        lm_head: the output layer, a ``torch.nn.Linear`` with whole weights on this rank, or one to which
            ``fully_shard`` was applied.
        labels: [...] class indices of any integer type, or -100, which gives log-probability 0.
        return_entropy: whether to return a tuple of log-probabilities and entropies.

    Returns:
        A float32 tensor of the shape of ``labels``, in nats.

    Raises:
        TypeError, ValueError, RuntimeError, IndexError, NotImplementedError: see
            :func:`nkilib.torch.linear_token_scores`.
    """
    check_flags("compute_linear_logprobs", return_entropy=return_entropy)
    head = checked_head("compute_linear_logprobs", lm_head)

    def scored(hidden: Tensor) -> tuple[Tensor, ...]:
        return logprobs_of(head, hidden, labels, with_entropy=return_entropy)

    logprob, *entropy = _results(head, hidden, labels, scored)
    return (logprob, *entropy) if return_entropy else logprob  # type: ignore[return-value]
