# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``fuse_linear_loss``: causal language models of ``transformers`` whose training step computes no logits."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any, Final

import torch
from torch import Tensor, nn

from nkilib.core.host.options import check_flags
from nkilib.torch.functions.head_forward import results_in_forward
from nkilib.torch.functions.linear_cross_entropy.functional import linear_cross_entropy
from nkilib.torch.transformers.architectures import (
    FUSE,
    check_loss_function,
    find_causal_lm,
    logit_softcap,
    output_layer,
)
from nkilib.torch.transformers.labels import CausalLabels
from nkilib.torch.transformers.logits import NO_LOGITS

# The attribute of a model that has been fused. It is copied with the model, and gone when that is undone.
_ATTRIBUTE: Final = "_nkilib_fused_loss"


@dataclass(frozen=True)
class _FusedLoss:
    """The options of ``fuse_linear_loss`` for a model, and what the model then does in place of its own ``forward``.

    Attributes:
        outputs: the class of its outputs, ``CausalLMOutputWithPast``.
        evaluation: whether ``model.eval()`` skips the logits too, if there are labels.
        label_smoothing, lse_square_scale: the options of the loss in training.
        memory_limit: see :func:`nkilib.torch.linear_cross_entropy`.
    """

    outputs: Callable[..., Any]
    evaluation: bool
    label_smoothing: float
    lse_square_scale: float
    memory_limit: int | None

    def skips_logits(self, training: bool, labels: Tensor | None, skip_logits: bool | None) -> bool:
        """Return whether a call computes its loss without logits.

        Raises:
            ValueError: ``skip_logits`` is set, but the call has no labels.
        """
        if labels is None:
            if skip_logits:
                raise ValueError(f"{FUSE}: skip_logits=True needs labels, got none; pass labels, or leave it out")
            return False
        return training or self.evaluation if skip_logits is None else skip_logits

    def loss(self, model: Any, hidden: Tensor, causal_labels: CausalLabels) -> Tensor:
        """Return the loss of hidden states [..., sequence, width]. If ``fully_shard`` was applied to the output layer,
        it is computed within a call of the layer, which gathers the weights.
        """
        layer = output_layer(model)
        target = causal_labels.targets_of("hidden states", hidden)
        normalizer = causal_labels.normalizer(hidden.device)
        is_reduced = self.memory_limit is not None  # a single launch computes gradients, and has to know their scale

        def of_head(hidden: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor]:
            loss = linear_cross_entropy(
                hidden,
                weight,
                target,
                linear_bias=bias,
                reduction="mean" if is_reduced else "none",
                ignore_index=causal_labels.ignore_index,
                label_smoothing=self.label_smoothing if model.training else 0.0,
                lse_square_scale=self.lse_square_scale if model.training else 0.0,
                logit_softcap=logit_softcap(model),
                normalizer=normalizer if is_reduced else None,
                memory_limit=self.memory_limit,
            )
            return (loss,)

        (loss,) = results_in_forward(layer, hidden, target, of_head)
        return loss if is_reduced else causal_labels.mean(loss, target, normalizer)

    def forward(self, model: Any, *, labels: Tensor, logits_to_keep: int | Tensor = 0, **inputs: Any) -> Any:
        """Return the outputs of the model for keyword arguments, like its own ``forward`` except for the logits."""
        check_loss_function(model)
        return_dict = inputs.pop("return_dict", None)
        base = model.model(**inputs)
        hidden = _kept(base.last_hidden_state, logits_to_keep)
        causal_labels = CausalLabels(
            FUSE, labels, inputs.get("shift_labels"), inputs.get("ignore_index", -100), inputs.get("num_items_in_batch")
        )
        outputs = self.outputs(
            loss=self.loss(model, hidden, causal_labels),
            logits=NO_LOGITS,
            past_key_values=base.past_key_values,
            hidden_states=base.hidden_states,
            attentions=base.attentions,
        )
        wants_dict = model.config.return_dict if return_dict is None else return_dict
        return outputs if wants_dict else outputs.to_tuple()


class Undo:
    """Restores the model's own ``forward`` when it is called, or at the end of a ``with`` block.

    A second call does nothing. If something else has wrapped the model's ``forward`` in the meantime, as a trainer does
    for mixed precision, the wrapper stays, and the wrapped forward computes logits again. A deep copy of a fused model
    is fused, and ``Undo(copy)()`` restores it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self) -> None:
        vars(self._model).pop(_ATTRIBUTE, None)
        if _has_fused_forward(self._model):
            del self._model.forward

    def __enter__(self) -> Undo:
        return self

    def __exit__(self, *error: object) -> None:
        self()


def fuse_linear_loss(
    model: nn.Module,
    *,
    evaluation: bool = False,
    label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0,
    memory_limit: int | None = None,
) -> Undo:
    """Make a causal language model of ``transformers`` compute its loss from hidden states, without logits.

    Afterwards, with labels and in training mode, ``model(input_ids=ids, labels=labels).loss`` is
    :func:`nkilib.torch.linear_cross_entropy` of the last hidden states and the weight of ``lm_head``, with the label
    shift, ``ignore_index``, ``shift_labels``, ``num_items_in_batch`` and ``logits_to_keep`` of the model itself. It
    equals the loss of the stock model; products and statistics are float32, whereas the stock model rounds logits to
    its dtype. ``logits`` of the output is a :class:`NoLogits`, which raises on every use as a tensor. Without
    labels, as in generation, and after ``model.eval()``, the model's own ``forward`` runs, with logits.
    ``skip_logits=True`` or ``False``, passed to a call of the model, decides for that call.

    Args:
        model: one of Gemma2ForCausalLM, LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM, or
            a module that contains one, such as a PEFT model. Its ``lm_head`` must be a plain ``torch.nn.Linear``;
            ``fully_shard`` may be applied to it with the rest of the model, by itself or in a list, before or after
            this call.
        evaluation: skip the logits after ``model.eval()`` too, if there are labels: for an evaluation of the loss
            alone.
        label_smoothing, lse_square_scale: see :func:`nkilib.torch.linear_cross_entropy`; used in training mode only.
        memory_limit: see :func:`nkilib.torch.linear_cross_entropy`.

    Returns:
        An object that undoes the change: call it, or use it in a ``with`` statement.

    Raises:
        TypeError: the model is not one of these, has another ``forward`` than theirs, or another output layer.
        ValueError: the model has been fused already, something wraps its ``forward``, its loss is not that of
            ``transformers``, ``lm_head`` has hooks or not as many rows as the configuration says, or its weight is tied
            to the embedding and ``fully_shard`` was applied to it alone.
        RuntimeError, IndexError, NotImplementedError: when the model is called, see
            :func:`nkilib.torch.linear_cross_entropy`.

    Source: arXiv 2410.10989 (Liger Kernel) and 2411.09009 (Cut Your Losses) fuse output layer and loss in the same way.
    """
    check_flags(FUSE, evaluation=evaluation)
    causal_lm = find_causal_lm(model)
    _check_unwrapped(causal_lm)
    check_loss_function(causal_lm)
    _check_vocabulary(causal_lm, output_layer(causal_lm))
    from transformers.modeling_outputs import CausalLMOutputWithPast  # such a model exists only if it has been imported

    fused = _FusedLoss(CausalLMOutputWithPast, evaluation, label_smoothing, lse_square_scale, memory_limit)
    setattr(causal_lm, _ATTRIBUTE, fused)
    # A bound method, which a deep copy of the model binds to the copy.
    causal_lm.forward = MethodType(_fused_forward(type(causal_lm).forward), causal_lm)
    return Undo(causal_lm)


def _check_unwrapped(model: nn.Module) -> None:
    """Reject a second fusion, and a ``forward`` that wraps the model's own, because the wrapper would not run."""
    forward = vars(model).get("forward")
    if _has_fused_forward(model) and _ATTRIBUTE in vars(model):
        raise ValueError(
            f"{FUSE}: model has been fused already; undo it by the object that {FUSE} returned, or Undo(model)()"
        )
    # A model from a pickle has its own forward as an attribute.
    if forward is None or _has_fused_forward(model) or getattr(forward, "__func__", None) is type(model).forward:
        return
    raise ValueError(
        f"{FUSE}: model.forward must be that of its class, got {getattr(forward, '__qualname__', forward)!r}; call "
        f"{FUSE} before anything wraps it, as accelerate does for mixed precision and device_map"
    )


def _check_vocabulary(model: Any, layer: nn.Linear) -> None:
    rows, classes = layer.weight.shape[0], model.config.vocab_size
    if rows != classes:
        raise ValueError(
            f"{FUSE}: lm_head must have as many rows as config.vocab_size, {classes}, got {rows}; set that to the rows "
            f"of the output layer, and call {FUSE} before the model is sharded"
        )


@functools.cache
def _fused_forward(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``forward`` of a fused model, with the parameters of ``stock``, the model's own. It calls ``stock`` if
    logits are wanted, or if the model has been restored.
    """
    signature = inspect.signature(stock)
    _, *names = (
        name for name, parameter in signature.parameters.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    )

    @functools.wraps(stock)
    def forward(self: Any, *args: Any, skip_logits: bool | None = None, **kwargs: Any) -> Any:
        positional = dict(zip(names, args, strict=False))
        fused: _FusedLoss | None = getattr(self, _ATTRIBUTE, None)
        if fused is None or len(args) > len(names) or positional.keys() & kwargs.keys():
            return stock(self, *args, **kwargs)  # the latter two are errors, and its own
        inputs = {**positional, **kwargs}
        if fused.skips_logits(self.training, inputs.get("labels"), skip_logits):
            return fused.forward(self, **inputs)
        return stock(self, **inputs)

    # Programs ask for the arguments; accelerate follows __wrapped__ when it unwraps a model, to the end.
    forward.__signature__ = signature  # type: ignore[attr-defined]
    del forward.__wrapped__
    return forward


def _has_fused_forward(model: nn.Module) -> bool:
    forward = vars(model).get("forward")
    return forward is not None and getattr(forward, "__func__", None) is _fused_forward(type(model).forward)


def _kept(hidden: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """Return the hidden states [batch, sequence, width] of the positions for which the model would compute logits.

    ``logits_to_keep`` is their number, counted from the end, or 0 for all; or indices of positions, [positions] for
    every sequence, or [batch, positions] for each; or a mask [batch, sequence], which gives [positions, width].
    """
    if isinstance(logits_to_keep, int):
        return hidden[:, -logits_to_keep:]
    if logits_to_keep.dim() != 2:
        return hidden[:, logits_to_keep]
    if logits_to_keep.dtype == torch.bool:
        return hidden[logits_to_keep]
    return torch.take_along_dim(hidden, logits_to_keep[..., None], dim=1)
