# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``fuse_linear_loss``: causal language models of ``transformers`` whose training step computes no logits.

The models that it supports, the placeholder for the logits, and the ``forward`` of a fused model.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any, Final, NoReturn

import torch
from torch import Tensor, nn

from nkilib.core.host.options import check_flags
from nkilib.torch.functions.linear_cross_entropy.functional import linear_cross_entropy
from nkilib.torch.functions.output_layer import check_linear_head, is_fully_sharded, results_in_forward
from nkilib.torch.transformers.loss import CausalLabels, causal_lm_loss

FUSE: Final = "fuse_linear_loss"
# The attribute of a model that has been fused. It is copied with the model, and gone when that is undone.
_ATTRIBUTE: Final = "_nkilib_fused_loss"

_MESSAGE: Final = (
    "the loss was computed without logits, by nkilib.torch.transformers.fuse_linear_loss; for logits beside the loss "
    "pass skip_logits=False to the model, call model.eval(), or undo the fusion by what fuse_linear_loss returned"
)


class NoLogits:
    """A placeholder that raises on every use as a tensor, and explains how to get logits.

    It keeps the place of the logits in outputs, so that the other items of a tuple keep their position. It is not None,
    because errors about None would not say what is missing. Programs that walk through outputs, such as ``accelerate``
    and DistributedDataParallel, treat it as a value that is not a tensor.
    """

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(name if name.startswith("__") else f"{name}: {_MESSAGE}")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise RuntimeError(_MESSAGE)

    def _refuse(self, *operands: Any) -> NoReturn:
        raise RuntimeError(_MESSAGE)

    __getitem__ = __iter__ = __len__ = __neg__ = _refuse
    __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = _refuse
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = _refuse

    def __repr__(self) -> str:
        return f"<no logits: {_MESSAGE}>"

    def __reduce__(self) -> str:
        return "NO_LOGITS"  # copies and pickles are this one


NO_LOGITS: Final = NoLogits()

# Models whose forward is: ``model``, ``lm_head``, a cap of the logits, the loss. The values are the names under which
# their configurations have the cap.
_SOFTCAPS: Final[Mapping[str, str | None]] = {
    "Gemma2ForCausalLM": "final_logit_softcapping",
    "LlamaForCausalLM": None,
    "MistralForCausalLM": None,
    "Qwen2ForCausalLM": None,
    "Qwen3ForCausalLM": None,
}
SUPPORTED: Final = ", ".join(_SOFTCAPS)
_INSTEAD: Final = (
    "for other models assign nkilib.torch.transformers.causal_lm_loss to model.loss_function, which takes logits, or "
    "call nkilib.torch.linear_cross_entropy with the hidden states and the weight of the output layer"
)
_LEAVE_THE_HEAD: Final = (
    "leave lm_head out of what is adapted (target_modules and modules_to_save of PEFT) or quantized, remove hooks and "
    "forwards that were set (device_map of accelerate sets some), or undo this and use causal_lm_loss"
)


def known_class(module: nn.Module) -> type[nn.Module] | None:
    """Return the supported class of ``transformers`` that ``module`` is an instance of, directly or by inheritance;
    None if there is none.
    """
    for kind in type(module).__mro__:
        if kind.__name__ in _SOFTCAPS and kind.__module__.startswith("transformers.models."):
            return kind
    return None


def find_causal_lm(module: nn.Module) -> nn.Module:
    """Return the supported model that ``module`` is or contains.

    Raises:
        TypeError: there is none, or its class has another ``forward`` than that of ``transformers``.
        ValueError: there are several.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"{FUSE}: argument 'model' must be torch.nn.Module, not {type(module).__name__}; pass a model")
    models = {candidate: kind for candidate in module.modules() if (kind := known_class(candidate)) is not None}
    if not models:
        raise TypeError(
            f"{FUSE}: model must be, or hold, one of {SUPPORTED} of transformers, got {type(module).__name__}; "
            f"{_INSTEAD}"
        )
    if len(models) > 1:
        raise ValueError(
            f"{FUSE}: model must hold one causal language model, got {len(models)} in {type(module).__name__}; call it "
            f"with each of them"
        )
    ((model, kind),) = models.items()
    if type(model).forward is not kind.forward:
        raise TypeError(
            f"{FUSE}: model must have the forward of {kind.__name__}, got {type(model).__name__} with one of its own, "
            f"which would not run; {_INSTEAD}"
        )
    return model


def output_layer(model: Any) -> nn.Linear:
    """Return the output layer of a supported model, which must only multiply by its weight.

    Raises:
        TypeError: it is not a ``torch.nn.Linear``, for instance because LoRA or quantization replaced it.
        ValueError: it has hooks other than those of ``fully_shard``, which would not run or would get a loss instead of
            logits; or its weight is tied to the embedding, and ``fully_shard`` was applied to it alone.
    """
    layer: nn.Linear = model.lm_head
    check_linear_head(FUSE, layer, _LEAVE_THE_HEAD)
    if is_fully_sharded(layer) and model.config.tie_word_embeddings:
        _check_tied(model, layer)
    return layer


def _check_tied(model: Any, layer: nn.Linear) -> None:
    """Reject a weight that ``fully_shard`` has sharded in the output layer but not in the embedding that it is
    tied to.
    """
    if layer.weight is model.get_input_embeddings().weight:
        return
    raise ValueError(
        f"{FUSE}: the weight of lm_head is tied to the embedding (config.tie_word_embeddings), so fully_shard must get "
        f"both in one group, and got lm_head without the embedding; pass them in one list, "
        f"fully_shard([model.model.embed_tokens, model.model.norm, model.lm_head]), or leave both to the group of the "
        f"root, fully_shard(model)"
    )


def logit_softcap(model: Any) -> float | None:
    """Return the cap of the logits of a supported model, from its configuration."""
    kind = known_class(model)
    name = None if kind is None else _SOFTCAPS[kind.__name__]
    return None if name is None else getattr(model.config, name)


def check_loss_function(model: Any) -> None:
    """Reject a custom loss function of the model, because it would not be called.

    Raises:
        ValueError: the model has a custom loss function.
    """
    function = model.loss_function
    if function is causal_lm_loss or getattr(function, "__name__", None) == "ForCausalLMLoss":
        return
    raise ValueError(
        f"{FUSE}: model.loss_function must be that of transformers, or causal_lm_loss, got {function!r}, which would "
        f"not be called; del model._loss_function, and pass label_smoothing and lse_square_scale to {FUSE} instead"
    )


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
