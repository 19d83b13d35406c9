# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every causal language model class of ``transformers``, as a tiny model with random parameters and a batch for it.

The default configuration of a class is shrunk: :data:`_LARGEST` has the largest size by the name of an attribute, and
lists with an entry a layer keep a layer of each kind. :data:`_OVERRIDES` and :data:`_INPUTS` have what is left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

VOCABULARY: Final = 99
LENGTH: Final = 12
BATCH: Final = 2
_LAYERS: Final = 2
_CODEBOOKS: Final = 4
_SPECIAL: Final = 16  # token ids below are special ones, which inputs do not have


def _by_name(**sizes: str) -> dict[str, int]:
    """Return sizes by the names of attributes, from names by size."""
    return {name: int(size[1:]) for size, names in sizes.items() for name in names.split()}


# The largest size of an attribute of a configuration.
_LARGEST: Final = {
    "vocab_size": VOCABULARY,
    **_by_name(
        _0="""num_kv_shared_layers num_nextn_predict_layers""",
        _1="""topk_group num_dense_layers first_k_dense_replace moe_layer_start_index""",
        _2="""num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers
            num_encoder_layers attention_layers num_key_value_heads num_kv_heads swa_num_key_value_heads
            num_query_groups num_experts_per_tok num_experts_per_token moe_topk moe_k n_group num_expert_group
            n_shared_experts num_shared_experts moe_num_shared_experts mamba_n_groups n_groups mamba_ngroups
            o_groups index_topk_blocks linear_num_key_heads num_blocks num_layers_per_stack""",
        _4="""num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads
            attention_heads num_decoder_attention_heads num_encoder_attention_heads num_experts n_routed_experts
            num_local_experts moe_num_experts zero_expert_num index_n_heads linear_num_value_heads
            linear_num_heads swa_num_attention_heads mamba_n_heads mamba_num_heads index_topk laurel_rank
            hc_lowrank gated_norm_rank adapter_rank time_step_rank mamba_dt_rank block_size index_block_size
            block_multiple_of""",
        _8="""sliding_window sliding_window_size window_size attention_window_size local_attention
            attention_chunk_size attention_window chunk_size mamba_chunk_size qk_rope_head_dim rotary_dim
            state_size mamba_d_state ssm_state_size keep_window_size rel_extent max_inference_chunksize
            index_head_dim""",
        _16="""head_dim v_head_dim qk_nope_head_dim q_lora_rank kv_lora_rank o_lora_rank linear_key_head_dim
            linear_value_head_dim linear_head_dim swa_head_dim kv_channels d_head dim_head attention_head_size
            hidden_size_per_layer_input router_hidden_size global_head_dim""",
        _24="""qk_head_dim""",
        _32="""moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size
            shared_intermediate_size moe_shared_expert_intermediate_size shared_experts_intermediate_size""",
        _64="""hidden_size hidden_size_global n_embd d_model dim emb_dim embedding_dim embedding_size
            word_embed_proj_dim
            input_embedding_size output_embedding_size lru_width backbone_hidden_size classifier_proj_size
            mask_feature_length""",
        _96="""intermediate_size ffn_dim n_inner encoder_ffn_dim decoder_ffn_dim ffn_hidden_size dim_ff dff d_inner
            feed_forward_size intermediate_size_mlp dense_intermediate_size prompt_mid_dim""",
        _99="""vocab_size_per_layer_input decoder_vocab_size n_vocab encoder_hash_byte_group_vocab
            ngram_vocab_size_base""",
        _128="""max_position_embeddings n_positions n_ctx max_seq_len model_max_length context_length
            max_source_positions max_target_positions""",
    ),
}
# Attributes that lists of an entry a layer are as long as.
_COUNTS_OF_LAYERS: Final = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    *("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers"),
)
# Heads of queries, and those of keys and values.
_HEADS: Final = {
    "num_attention_heads": "num_key_value_heads",
    "swa_num_attention_heads": "swa_num_key_value_heads",
}
# Values of attributes that many have; routers have a loss of their own then, which is added to that of the labels.
_VALUES: Final = {"is_decoder": True, "use_cache": False, "logits_scaling": 3.0, "output_router_logits": True}
_ROPE: Final = {"rope_type": "default", "rope_theta": 10000.0}
# Attributes of the configurations of classes that shrinking does not make right.
_OVERRIDES: Final[dict[str, dict[str, Any]]] = {
    "CohereCompassForCausalLM": {"rope_parameters": {"full_attention": {**_ROPE, "mrope_section": [4, 2, 2]}}},
    "DbrxForCausalLM": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 2},
    "Dots1ForCausalLM": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "Dots3NoteForCausalLM": {
        **dict.fromkeys(("swa_num_attention_heads", "swa_num_key_value_heads"), 4),
        **dict.fromkeys(("swa_q_lora_rank", "swa_kv_lora_rank", "swa_qk_nope_head_dim", "swa_v_head_dim"), 16),
        "swa_head_dim": 24,
    },
    "FlintForCausalLM": {"output_router_logits": False},
    "GitForCausalLM": {"vision_config": {"image_size": 32}},
    "HunYuanDenseV1ForCausalLM": {"head_dim": 16},
    "HunYuanMoEV1ForCausalLM": {"head_dim": 16},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "LongcatFlashForCausalLM": {"head_dim": 8},
    "Mamba2ForCausalLM": {"num_heads": 8},
    "MinistralForCausalLM": {"head_dim": 16},
    "NemotronForCausalLM": {"num_key_value_heads": 2},
    "Qwen4ExpForCausalLM": {
        **{"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 16},
        **{"indexer_budget": 8, "indexer_compress_ratio": 4},
    },
    "ReformerModelWithLMHead": {"axial_pos_shape": [3, 4], "axial_pos_embds_dim": [32, 32]},
    "XmodForCausalLM": {"default_language": "en_XX"},
    "ZambaForCausalLM": {"layers_block_type": ["linear_attention", "hybrid", "hybrid"], "num_hidden_layers": 3},
}


def class_names() -> list[str]:
    """Return the names of all classes that the installed release has for causal language models."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found: set[str] = set()
    for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        found.update(names if isinstance(names, (tuple, list)) else (names,))
    return sorted(found)


def tiny_model(name: str) -> PreTrainedModel:
    """Return a model of a class with few parameters, random ones, without dropout, in training."""
    import transformers

    with _quiet():
        kind = getattr(transformers, name)
        config = tiny_config(kind.config_class, _OVERRIDES.get(name, {}))
        torch.manual_seed(0)
        model: PreTrainedModel = kind(config)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        model.set_experts_implementation("eager")  # the grouped products have no float64
        _make_logits_large(model)
        return model.float().train()


def _make_logits_large(model: PreTrainedModel) -> None:
    """Make logits as large as those of a model that has learnt, so that a cap bends them."""
    weight = getattr(model.get_output_embeddings(), "weight", None)
    if isinstance(weight, nn.Parameter):
        with torch.no_grad():
            weight.mul_(0.3 / weight.std())


def tiny_config(kind: type[PretrainedConfig], overrides: dict[str, Any]) -> PretrainedConfig:
    """Return the default configuration of a class with small sizes, those of its parts included."""
    default = kind()
    parts = {
        name: tiny_config(type(part), overrides.get(name, {}))
        for name in kind.sub_configs or {}
        if (part := getattr(default, name, None)) is not None
    }
    return kind(**{**_shrunk(default), **overrides, **parts})


def _shrunk(config: PretrainedConfig) -> dict[str, Any]:
    """Return attributes of a configuration whose values are too large, with smaller ones."""
    values = {key: value for key, value in config.to_dict().items() if key not in ("id2label", "label2id")}
    derived = set(values) - {item.name for item in dataclasses.fields(config) if item.default is not None}
    changed: dict[str, Any] = {}
    special = iter(range(1, _SPECIAL))
    for key, value in values.items():
        is_size = isinstance(value, int) and not isinstance(value, bool) and key not in derived
        if is_size and value > _LARGEST.get(key, value):
            changed[key] = _LARGEST[key]
        elif "drop" in key and isinstance(value, float):
            changed[key] = 0.0
        elif key.endswith(("token_id", "token_index")) and value is not None:
            changed[key] = 0 if key == "pad_token_id" else next(special)
    for heads, of_keys in _HEADS.items():
        if of_keys not in derived and values.get(heads) == values.get(of_keys) is not None:
            changed[of_keys] = changed.get(heads, values[heads])  # a group of one head
    changed.update(_fewer_layers(values))
    changed.update({key: value for key, value in _VALUES.items() if key in values})
    return changed


def _fewer_layers(values: dict[str, Any]) -> dict[str, Any]:
    """Return the number of layers, and lists of an entry a layer, so that one layer of each kind is left."""
    found = {key: value for key, value in values.items() if key in _COUNTS_OF_LAYERS and isinstance(value, int)}
    changed: dict[str, Any] = {}
    for count in set(found.values()):
        lists = {
            key: value for key, value in values.items() if isinstance(value, (list, tuple)) and len(value) == count
        }
        kinds = [tuple(str(value[layer]) for value in lists.values()) for layer in range(count)]
        kept = sorted({kinds.index(kind) for kind in kinds})
        kept = kept if len(kept) >= min(_LAYERS, count) else list(range(min(_LAYERS, count)))
        changed.update({key: [value[layer] for layer in kept] for key, value in lists.items()})
        changed.update({key: len(kept) for key, size in found.items() if size == count})
    return changed


def batch(name: str) -> dict[str, Any]:
    """Return arguments of a model of a class: tokens, and labels of which some are ignored."""
    return _INPUTS.get(name, _tokens)()


def _tokens() -> dict[str, Any]:
    """Return tokens, and other ones as labels: a model with tied embeddings that shifts no labels knows the input."""
    generator = torch.Generator().manual_seed(1)
    ids, labels = torch.randint(_SPECIAL, VOCABULARY, (2, BATCH, LENGTH), generator=generator)
    labels[0, :3] = -100
    return {"input_ids": ids, "labels": labels}


def _codes() -> dict[str, Any]:
    """Return tokens and labels of some codebooks."""
    generator = torch.Generator().manual_seed(1)
    ids, labels = torch.randint(_SPECIAL, VOCABULARY, (2, BATCH, LENGTH, _CODEBOOKS), generator=generator)
    labels[0, :3] = -100
    return {"input_ids": ids.transpose(1, 2).flatten(0, 1), "labels": labels}


# Arguments of the models of classes, in place of the usual ones.
_INPUTS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "GitForCausalLM": lambda: {**_tokens(), "pixel_values": torch.ones(BATCH, 3, 32, 32)},
    "MusicgenForCausalLM": _codes,
    "MusicgenMelodyForCausalLM": _codes,
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep configurations and models from telling about sizes that nobody has."""
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
