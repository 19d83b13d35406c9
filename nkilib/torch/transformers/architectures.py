# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The models of ``transformers`` that ``fuse_linear_loss`` supports, and their computation after the hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import nn

from nkilib.torch.functions.head_forward import check_linear_head, is_fully_sharded
from nkilib.torch.transformers.loss import causal_lm_loss

FUSE: Final = "fuse_linear_loss"

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
