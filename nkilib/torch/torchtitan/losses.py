# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses of TorchTitan from logits, with TorchTitan's names and arguments; TorchTitan is not imported.

They are :func:`cross_entropy_loss` and :func:`compute_logprobs`, and the losses that a configuration builds:
:func:`build_cross_entropy_loss`, :class:`CrossEntropyLoss` and :class:`ChunkedCrossEntropyLoss`. Multi-token prediction
has several predictions and labels: :func:`predictions_of` pairs them, and :func:`weighted_sum` adds up their losses.

They have the interfaces of ``torchtitan/components/loss.py``, version 0.2.2 for :func:`build_cross_entropy_loss` and
0.3.0 for the others. docs/reference/torch.md#which-function-for-which-trainer describes how to use each in TorchTitan.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nkilib.core.host.options import check_flags
from nkilib.torch.dispatch.dtensors import chunk_sizes, dtensor
from nkilib.torch.dispatch.operator import TILE_DTYPES
from nkilib.torch.functions.cross_entropy.functional import cross_entropy
from nkilib.torch.functions.output_layer import chunked_loss
from nkilib.torch.functions.token_scores import token_scores
from nkilib.torch.functions.vocab_parallel.functional import vocab_parallel_cross_entropy

# The label of ignored positions.
IGNORE_INDEX: Final = -100
# The weight of the further predictions of multi-token prediction, by TorchTitan's default.
MTP_SCALE: Final = 0.3
# One tensor, or with multi-token prediction one for each prediction.
Tensors: TypeAlias = Tensor | tuple[Tensor, ...]


class Prediction(NamedTuple):
    """One of the predictions of a model with multi-token prediction, its labels, and the factor ``weight`` of its loss.

    ``pred`` has the logits or the hidden states.
    """

    pred: Tensor
    labels: Tensor
    weight: float


def predictions_of(caller: str, pred: Tensors, labels: Tensors, mtp_scale: float) -> list[Prediction]:
    """Return the predictions with their labels and weights, as TorchTitan's ``MTPLoss`` weights them: 1 for the first
    one, and ``mtp_scale`` divided equally among the others.

    Args:
        caller: the function that error messages name.
        pred, labels: two tensors, or two tuples of the same length, of at least two tensors.
        mtp_scale: the sum of the weights of all predictions but the first.

    Raises:
        ValueError: ``pred`` and ``labels`` are something else.
    """
    if isinstance(pred, Tensor) and isinstance(labels, Tensor):
        return [Prediction(pred, labels, 1.0)]
    if not isinstance(pred, tuple) or not isinstance(labels, tuple) or len(pred) < 2 or len(pred) != len(labels):
        got = (f"{len(each)} tensors" if isinstance(each, tuple) else type(each).__name__ for each in (pred, labels))
        raise ValueError(
            f"{caller}: pred and labels must be two tensors, or two tuples of at least two tensors each with one "
            f"tensor of labels for each prediction, got {' and '.join(got)}; pass tuples of the same length"
        )
    further = mtp_scale / (len(pred) - 1)
    weights = (1.0, *(further for _ in pred[1:]))
    return [Prediction(*each) for each in zip(pred, labels, weights, strict=True)]


def weighted_sum(predictions: Sequence[Prediction], losses: Iterable[Tensor]) -> Tensor:
    """Return the sum of the losses, each multiplied by the weight of its prediction; the first weight must be 1."""
    first, *others = losses
    for prediction, loss in zip(predictions[1:], others, strict=True):
        first = first + prediction.weight * loss
    return first


def _as_taken(logits: Tensor) -> Tensor:
    return logits if logits.dtype in TILE_DTYPES else logits.float()


def _ranks_of_vocabulary(logits: Tensor, group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """Return the group of ranks that share the vocabulary of plain logits; None if this rank has the whole vocabulary.

    It is ``group`` if the caller passed one, else the tensor-parallel group of TorchTitan's mesh.
    """
    if group is not None or dtensor(logits) is not None:
        return group
    titan = sys.modules.get("torchtitan.distributed.spmd_types")
    if titan is None or titan.spmd_mesh_size("tp") <= 1:  # 1 with another way to distribute, too
        return None
    of_mesh: dist.ProcessGroup = titan.current_spmd_mesh().get_group("tp")
    return of_mesh


def _check_whole(noun: str, logits: Tensor, global_vocab_size: int | None) -> None:
    """Check that the logits have ``global_vocab_size`` columns, if that is given: no rank with others is known."""
    if global_vocab_size in (None, logits.shape[-1]):
        return
    has = f"has {logits.shape[-1]} of global_vocab_size={global_vocab_size} classes, and"
    if dtensor(logits) is not None:
        raise ValueError(f"{noun}, a DTensor, {has} the columns of all ranks count; leave global_vocab_size out")
    raise ValueError(f"{noun} {has} the ranks that have the others are not known; pass group")


def _sizes(caller: str, group: dist.ProcessGroup, global_vocab_size: int | None) -> tuple[int, ...]:
    if global_vocab_size is None:
        raise ValueError(
            f"{caller}: the vocabulary is sharded over a group of {dist.get_world_size(group)}, and its size is not "
            f"known; pass global_vocab_size"
        )
    return chunk_sizes(global_vocab_size, dist.get_world_size(group))


def cross_entropy_loss(
    pred: Tensor,
    labels: Tensor,
    *,
    global_vocab_size: int | None = None,
    group: dist.ProcessGroup | None = None,
    inplace: bool = False,
) -> Tensor:
    """Return the sum of the cross-entropies of all valid tokens, like
    ``torchtitan.components.loss.cross_entropy_loss``.

    The loss equals, without the float32 copy of the logits::

        F.cross_entropy(pred.flatten(0, -2).float(), labels.flatten(), reduction="sum", ignore_index=-100)

    For a sharded vocabulary it equals TorchTitan's ``_LossParallelCrossEntropy``, but takes two all-reduces instead of
    three, and keeps no float32 log-probabilities [tokens, V / ranks] for the backward.

    Args:
        pred: logits [..., V]; a DTensor, whose vocabulary may be sharded; or, with a group, this rank's part of the
            vocabulary, divided as ``torch.chunk`` does.
        labels: [...] class indices of any integer type; tokens with label -100 are ignored.
        global_vocab_size: V, to be given if ``pred`` is a plain tensor with a part of the vocabulary.
        group: the ranks that share the vocabulary of a plain ``pred``. None: the group ``"tp"`` of TorchTitan's mesh,
            if TorchTitan runs with ``spmd_types``, whose tensors are plain; otherwise ``pred`` has the whole
            vocabulary.
        inplace: the backward writes the gradient over the memory of ``pred``.

    Returns:
        A plain float32 scalar tensor, for the tokens of this rank.

    Raises:
        ValueError: the vocabulary is sharded and ``global_vocab_size`` is missing, or it does not match the columns.
        TypeError, RuntimeError, IndexError, NotImplementedError: see :func:`nkilib.torch.cross_entropy`.
    """
    logits = _as_taken(pred)
    options: dict[str, Any] = {"ignore_index": IGNORE_INDEX, "reduction": "sum", "inplace": inplace, "class_dim": -1}
    ranks = _ranks_of_vocabulary(logits, group)
    if ranks is not None:
        sizes = _sizes("cross_entropy_loss", ranks, global_vocab_size)
        loss: Tensor = vocab_parallel_cross_entropy(logits, labels, ranks, shard_sizes=sizes, **options)
        return loss
    _check_whole("cross_entropy_loss: pred", logits, global_vocab_size)
    return cross_entropy(logits, labels, **options)


def compute_logprobs(
    logits: Tensor,
    labels: Tensor,
    *,
    return_entropy: bool = False,
    global_vocab_size: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute the log-probability of every label, and optionally the entropy, like
    ``torchtitan.components.loss.compute_logprobs``.

    Both are computed with one read of the logits; a sharded vocabulary is not gathered. The entropy is a constant for
    autograd, as in TorchTitan.

    Args:
        logits: [..., V]; a DTensor, whose vocabulary may be sharded; or, with a group, this rank's part of the
            vocabulary, divided as ``torch.chunk`` does.
        labels: [...] class indices of any integer type, or -100, which gives log-probability 0.
        return_entropy: whether to return a tuple of log-probabilities and entropies.
        global_vocab_size: V, if ``logits`` is a plain tensor with a part of the vocabulary. Without it, all ranks of a
            sharded vocabulary must have equally many columns.
        group: the ranks that share the vocabulary of plain ``logits``; None: as for :func:`cross_entropy_loss`.

    Returns:
        A float32 tensor of the shape of ``labels``, in nats.

    Raises:
        ValueError: ``global_vocab_size`` is not the number of columns, and no group with the other columns is known.
        TypeError, RuntimeError, IndexError, NotImplementedError: see :func:`nkilib.torch.token_scores`.
    """
    check_flags("compute_logprobs", return_entropy=return_entropy)
    logits = _as_taken(logits)
    ranks = _ranks_of_vocabulary(logits, group)
    sizes = None
    if ranks is None:
        _check_whole("compute_logprobs: logits", logits, global_vocab_size)
    elif global_vocab_size is not None:
        sizes = _sizes("compute_logprobs", ranks, global_vocab_size)
    scores = token_scores(logits, labels, ranks, ignore_index=IGNORE_INDEX, shard_sizes=sizes, entropy=return_entropy)
    return (scores.logprob, scores.entropy) if return_entropy else scores.logprob


def build_cross_entropy_loss(job_config: Any, **kwargs: Any) -> Callable[..., Tensor]:
    """Return the loss function for a ``TrainSpec`` of TorchTitan 0.2:
    ``TrainSpec(build_loss_fn=build_cross_entropy_loss)``.

    Args:
        job_config: TorchTitan's configuration, of which ``compile`` is read: ``enable``, ``components`` and
            ``backend``.
        kwargs: ignored, as in TorchTitan.
    """
    if job_config.compile.enable and "loss" in job_config.compile.components:
        compiled: Callable[..., Tensor] = torch.compile(cross_entropy_loss, backend=job_config.compile.backend)
        return compiled
    return cross_entropy_loss


@dataclass
class CrossEntropyLoss:
    """Cross-entropy from logits with the signature of TorchTitan 0.3: ``(pred, labels, global_valid_tokens) -> (loss,
    {})``.

    With multi-token prediction, ``pred`` and ``labels`` are tuples of one tensor for each prediction. The loss is then
    that of TorchTitan's ``MTPLoss``: the first prediction's loss plus ``mtp_scale`` times the mean of the other losses.

    Attributes:
        global_vocab_size: V, if ``pred`` is a plain tensor with a part of the vocabulary; else None.
        group: the ranks that share the vocabulary of a plain ``pred``; None: as for :func:`cross_entropy_loss`.
        inplace: whether the backward writes the gradient over the memory of ``pred``.
        mtp_scale: the sum of the weights of all predictions of a tuple but the first.
    """

    global_vocab_size: int | None = None
    group: dist.ProcessGroup | None = None
    inplace: bool = False
    mtp_scale: float = MTP_SCALE

    def __call__(
        self, pred: Tensors, labels: Tensors, global_valid_tokens: Tensor | float | None = None, **kwargs: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, divided by the number of valid tokens on all ranks, and no metrics.

        Args:
            pred: logits [..., V], as :func:`cross_entropy_loss` takes them; or a tuple of at least two of them.
            labels: [...] class indices, -100 where a token is ignored; or a tuple of as many of them.
            global_valid_tokens: the number of valid tokens on all ranks; a tensor is not read.
            kwargs: further arguments that a trainer passes; ignored, as in TorchTitan.

        Raises:
            ValueError: a tuple together with a tensor, or tuples of different lengths or of one tensor.
        """
        predictions = predictions_of("CrossEntropyLoss", pred, labels, self.mtp_scale)
        options: dict[str, Any] = {"global_vocab_size": self.global_vocab_size, "group": self.group}
        losses = (cross_entropy_loss(each.pred, each.labels, inplace=self.inplace, **options) for each in predictions)
        loss = weighted_sum(predictions, losses)
        return (loss if global_valid_tokens is None else loss / global_valid_tokens), {}


@dataclass
class ChunkedCrossEntropyLoss:
    """Output layer, loss and backward, one chunk of the tokens at a time, like TorchTitan's ``ChunkedLossWrapper``.

    Nothing else uses the logits of a chunk, so by default their gradient is written over their memory. The gradient of
    the weights is summed in float32 over the chunks, and all gradients are kept until the backward of the loss, which
    may scale them (see :func:`nkilib.torch.functions.output_layer.chunked_loss`). With multi-token prediction, ``pred``
    and ``labels`` are tuples; the predictions are computed one after the other, and their losses are weighted as in
    :class:`CrossEntropyLoss`.

    Attributes:
        num_chunks: the number of chunks, which have equally many tokens except for the last one.
        loss: the loss of a chunk.
        lm_head: the output layer, from hidden states to logits.
    """

    num_chunks: int = 8
    loss: CrossEntropyLoss = field(default_factory=lambda: CrossEntropyLoss(inplace=True))
    lm_head: nn.Module | None = None

    def set_lm_head(self, lm_head: nn.Module) -> None:
        """Set the output layer, before the first call."""
        self.lm_head = lm_head

    def __call__(
        self, pred: Tensors, labels: Tensors, global_valid_tokens: Tensor | float | None = None, **kwargs: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and no metrics.

        Args:
            pred: hidden states [..., width], the input of the output layer; or a tuple of at least two of them.
            labels: the labels [...] of the same tokens; a tuple where ``pred`` is one.
            global_valid_tokens: see :class:`CrossEntropyLoss`.
            kwargs: ignored, as in TorchTitan.

        Raises:
            RuntimeError: no output layer is set.
            ValueError: see :class:`CrossEntropyLoss`.
        """
        if self.lm_head is None:
            raise RuntimeError(
                "ChunkedCrossEntropyLoss: the output layer must be set, and is not; call set_lm_head, and have the "
                "model return its hidden states"
            )

        head, predictions = self.lm_head, predictions_of("ChunkedCrossEntropyLoss", pred, labels, self.loss.mtp_scale)

        def loss(logits: Tensor, target: Tensor) -> Tensor:
            return self.loss(logits, target, global_valid_tokens)[0]

        losses = (chunked_loss(each.pred, each.labels, head, loss, self.num_chunks) for each in predictions)
        return weighted_sum(predictions, losses), {}
