"""The loss of Hugging Face causal language models on the kernels: ``model.loss_function = causal_lm_loss``.

It has the signature that ``transformers`` calls, and does not import it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch.functional import cross_entropy
from nkilib.torch.launch import TILE_DTYPES


def causal_lm_loss(
    logits: Tensor,
    labels: Tensor | None,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    *,
    inplace: bool = False,
    **kwargs: Any,
) -> Tensor:
    """Cross-entropy of every token with the one after it, as ``transformers.loss.loss_utils.ForCausalLMLoss``.

    Assign it to a model once; the model's ``forward`` calls it when it is given labels::

        model.loss_function = causal_lm_loss
        model.loss_function = functools.partial(causal_lm_loss, inplace=True)  # the logits' memory becomes the gradient

    It equals, with ``shifted = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]``::

        F.cross_entropy(logits.float().view(-1, vocab_size), shifted.view(-1), ignore_index=ignore_index)

    and with ``num_items_in_batch`` the sum of the losses over that number. The logits are not copied to float32 for
    it: the kernels compute in float32 whatever the type of the logits, and round the gradient once.

    Args:
        logits: [..., sequence, V], bfloat16 or float32; other floating types are cast to float32 first, as there.
        labels: [..., sequence] integer, the tokens themselves, unshifted; not looked at if ``shift_labels`` is given.
        vocab_size: V.
        num_items_in_batch: what the sum is divided by, a number or a tensor of one element: the targets of all
            micro-batches of a step. None divides by the targets of this call, of which there must be one.
        ignore_index: label of tokens that are no target, as padding.
        shift_labels: [..., sequence] integer, or flat, the target of every position; replaces ``labels``, as sequence
            parallelism needs it, where the token after the last of a rank is on another one.
        inplace: the backward writes the gradient over the memory of ``logits``, which are the ``logits`` of the
            model's output.
        kwargs: what else a model hands on; ignored, as there.

    Returns:
        The loss, float32 without dimensions.

    Raises:
        ValueError: neither ``labels`` nor ``shift_labels`` is given; ``vocab_size`` is not the last dimension of
            ``logits``; ``num_items_in_batch`` has more elements than one.
        RuntimeError: there are not as many labels as positions.
        TypeError, IndexError, NotImplementedError: as :func:`nkilib.torch.cross_entropy`.
    """
    if logits.shape[-1] != vocab_size:
        raise ValueError(
            f"causal_lm_loss: vocab_size must be the last dimension of logits, got {vocab_size} and logits of shape "
            f"{tuple(logits.shape)}; set config.vocab_size to the rows of the output layer"
        )
    if shift_labels is None:
        if labels is None:
            raise ValueError("causal_lm_loss: labels or shift_labels must be given, got neither; pass labels")
        # Every position keeps a row, the last one without a target, so that shapes do not depend on values.
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    target = shift_labels.to(logits.device).reshape(logits.shape[:-1])
    return cross_entropy(
        logits if logits.dtype in TILE_DTYPES else logits.float(),
        target,
        ignore_index=ignore_index,
        normalizer=_normalizer(num_items_in_batch, logits.device),
        inplace=inplace,
        class_dim=-1,
    )


def _normalizer(num_items_in_batch: Tensor | int | None, device: torch.device) -> Tensor | None:
    """The divisor as a tensor without dimensions on ``device``: data parallelism may hand on one of shape [1]."""
    if num_items_in_batch is None:
        return None
    items = torch.as_tensor(num_items_in_batch, device=device)
    if items.numel() != 1:
        raise ValueError(
            f"causal_lm_loss: num_items_in_batch must be a number or a tensor of one element, got shape "
            f"{tuple(items.shape)}; pass its sum"
        )
    return items.reshape(())
