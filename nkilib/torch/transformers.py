# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The loss of Hugging Face causal language models on the kernels, from their logits: ``model.loss_function =
causal_lm_loss``.

:func:`causal_lm_loss` has the signature that ``transformers`` calls, and takes lazy logits too: after
:func:`nkilib.torch.fuse_linear_loss`, a training step computes no logits. Importing this module does not import
``transformers``.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.base.deprecation import moved_names
from nkilib.core.host.options import shows
from nkilib.experimental.loss.cross_entropy.launch import LossOptions, RecipeOptions
from nkilib.torch.dispatch.operator import TILE_DTYPES
from nkilib.torch.functions.cross_entropy.checks import RECIPE
from nkilib.torch.functions.cross_entropy.functional import cross_entropy
from nkilib.torch.lazy_logits.head import Undo, fuse_linear_loss

__all__ = ["Undo", "causal_lm_loss", "fuse_linear_loss"]

__getattr__ = moved_names(__name__, {"NoLogits": "nkilib.torch.LazyLogits"}, since="0.3", removed_in="0.5")

# Arguments of cross_entropy that have no meaning here. They raise, instead of being ignored like other arguments.
_NOT_PASSED_ON: Final = frozenset(("weight", "reduction", "normalizer", "return_outputs", "class_dim"))


def _targets(logits: Tensor, labels: Tensor | None, shift_labels: Tensor | None, ignore_index: int) -> Tensor:
    """Return the class to predict at every position, [..., sequence], on the device of the logits [..., sequence, V].

    The classes are ``shift_labels`` if given, else the labels of the next positions, with ``ignore_index`` at the end.

    Raises:
        ValueError: neither labels nor shift_labels are given, or their number is not the number of positions.
    """
    targets, positions = shift_labels, logits.shape[:-1]
    if targets is None:
        if labels is None:
            raise ValueError("causal_lm_loss: labels or shift_labels must be given, got neither; pass labels")
        # Every position keeps a row, the last one without a target, so that shapes do not depend on values.
        targets = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    if targets.numel() != positions.numel():
        raise ValueError(
            f"causal_lm_loss: there must be a label for each of the {positions.numel()} positions of logits, "
            f"{tuple(positions)}, got {targets.numel()} of shape {tuple(targets.shape)}; where logits_to_keep "
            f"shortens the logits, shorten the labels in the same way"
        )
    return targets.to(logits.device).reshape(positions)


def _normalizer(num_items_in_batch: Tensor | int | None, device: torch.device) -> Tensor | None:
    """Return ``num_items_in_batch``, the divisor of the sum of the losses, as a scalar tensor on ``device``; None stays
    None.

    A tensor of shape [1], which data parallelism may pass, is accepted too.

    Raises:
        ValueError: ``num_items_in_batch`` does not have one element.
    """
    if num_items_in_batch is None:
        return None
    items = torch.as_tensor(num_items_in_batch, device=device)
    if items.numel() != 1:
        raise ValueError(
            f"causal_lm_loss: num_items_in_batch must be a number or a tensor of one element, got shape "
            f"{tuple(items.shape)}; pass its sum"
        )
    return items.reshape(())


@shows(RecipeOptions, defaults=LossOptions)
def causal_lm_loss(
    logits: Tensor,
    labels: Tensor | None,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
    inplace: bool = False,
    **kwargs: Any,
) -> Tensor:
    """Compute the cross-entropy of every token with the next one, like
    ``transformers.loss.loss_utils.ForCausalLMLoss``.

    Assign it to a model once, before anything wraps the model; the model's ``forward`` calls it if there are labels::

        model.loss_function = causal_lm_loss
        model.loss_function = functools.partial(causal_lm_loss, inplace=True)  # the logits' memory becomes the gradient
        model.loss_function = functools.partial(causal_lm_loss, lse_square_scale=1e-4)  # z-loss

    The loss equals, with ``shifted = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]``::

        F.cross_entropy(logits.float().view(-1, vocab_size), shifted.view(-1), ignore_index=ignore_index)

    With ``num_items_in_batch`` it is the sum of the losses divided by that number. The logits are not copied to
    float32: the kernels compute in float32 whatever the type of the logits, and round the gradient once.

    Args:
        logits: [..., sequence, V], bfloat16, float16 or float32; other floating types are first cast to float32.
        labels: [..., sequence] integer, the tokens themselves, unshifted; ignored if ``shift_labels`` is given.
        vocab_size: V.
        num_items_in_batch: the divisor of the sum, a number or a tensor of one element: the number of targets in all
            micro-batches of a step. None divides by the number of targets of this call, which must be at least one.
        ignore_index: label of tokens that are not targets, such as padding.
        shift_labels: [..., sequence] integer, or flat, the target of every position; replaces ``labels``. Sequence
            parallelism needs it, because the token after a rank's last one is on another rank.
        label_smoothing: from 0 to 1, the share of the target that is spread over all classes.
        logit_softcap: c, from 1e-30 to 1e30: replaces the logits by c * tanh(logits / c); None applies no cap. A model
            that caps its logits itself, such as Gemma 2, needs none.
        lse_square_scale: from 0 to 1e30, the factor of the squared log-sum-exp (z-loss) that is added to the loss.
        temperature: divides the logits after the cap, a number from 1e-6 to 1e6 or a tensor of them, as in
            :func:`nkilib.torch.cross_entropy`.
        inplace: the backward writes the gradient over the memory of ``logits``, which are also the ``logits`` of the
            model's output.
        kwargs: further arguments that a model passes; ignored, as in ``transformers``.

    Returns:
        The loss, a float32 scalar tensor.

    Raises:
        ValueError: neither ``labels`` nor ``shift_labels`` is given; ``vocab_size`` is not the last dimension of
            ``logits``; ``num_items_in_batch`` does not have one element; the number of labels is not that of positions.
        TypeError: an argument of ``cross_entropy`` that cannot be passed on, such as ``weight``.
        RuntimeError, IndexError, NotImplementedError: see :func:`nkilib.torch.cross_entropy`.
    """
    refused = sorted(_NOT_PASSED_ON & kwargs.keys())
    if refused:
        raise TypeError(
            f"causal_lm_loss: {', '.join(refused)} cannot be passed on to cross_entropy; call it yourself, with the "
            f"logits of the model's output"
        )
    if logits.shape[-1] != vocab_size:
        raise ValueError(
            f"causal_lm_loss: vocab_size must be the last dimension of logits, got {vocab_size} and logits of shape "
            f"{tuple(logits.shape)}; set config.vocab_size to the rows of the output layer"
        )
    return cross_entropy(
        logits if logits.dtype in TILE_DTYPES else logits.float(),
        _targets(logits, labels, shift_labels, ignore_index),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        normalizer=_normalizer(num_items_in_batch, logits.device),
        inplace=inplace,
        class_dim=-1,
        **{name: kwargs[name] for name in RECIPE if name in kwargs},
    )
