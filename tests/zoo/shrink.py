"""Configurations of the transformers library, made tiny by the names of their fields.

Enters: a configuration class. Leaves: an instance of it whose model has some ten thousand weights, built without a
network. The one idea: names mean the same everywhere (`hidden_size`, `num_hidden_layers`, `vocab_size`), so a list of
patterns shrinks nearly every architecture, those inside others (text, vision, audio) too. What depends on a number is
derived by the class itself: only fields that changed are passed.

Where heads can be grouped they are, eight queries to two keys: kernels take other paths then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from zoo.special import SPECIAL

HIDDEN, HEADS, KEY_HEADS, HEAD_DIM, INNER = 64, 8, 2, 8, 96
VOCABULARY, LAYERS, EXPERTS = 128, 2, 4
IMAGE, PATCH = 32, 8
POSITIONS = 192
"""Room for the 64 tokens of a batch, for those of an image, and for the few that some models put before them."""

Rule = Callable[[int], int]


def at_most(bound: int) -> Rule:
    return lambda value: min(value, bound)


def halves(bound: int) -> Rule:
    """A power of two: what is divided among heads is one."""
    return lambda value: min(1 << max(value.bit_length() - 1, 0), bound) if value > 0 else value


RULES: tuple[tuple[str, Rule], ...] = (
    (r"(.*_)?vocab_size(_.*)?|codebook_vocab_size|codebook_size|num_embeddings|num_clusters|num_embeds", at_most(128)),
    (r"max_(source|target)_positions|max_speech_positions", at_most(1500)),
    (r"(.*_)?max_position_embeddings|n_positions|n_ctx|max_seq_len|seq_length|context_length|max_length", at_most(192)),
    (r"encoder_layerdrop|.*layerdrop", at_most(0)),
    (r"(.*_)?(kv_heads|key_value_heads|kv_attention_heads|key_value_attention_heads)", halves(KEY_HEADS)),
    (r"(.*_)?(attention_heads|num_heads|n_heads|n_head|attn_heads)|attention_heads|encoder_heads", halves(HEADS)),
    (r"linear_num_key_heads|linear_num_value_heads", halves(4)),
    (r"kv_lora_rank|q_lora_rank|o_lora_rank|qk_head_dim", at_most(16)),
    (r"(.*_)?head_dim|head_size|d_kv|attention_head_size|d_head|kv_channels|dim_head", at_most(HEAD_DIM)),
    (r"qk_(rope|nope)_head_dim|v_head_dim", at_most(HEAD_DIM)),
    (r"rotary_dim", at_most(4)),
    (r"(.*_)?(moe|expert|experts)_(intermediate|ffn_hidden|hidden)_size|moe_.*size|intermediate_size_mlp", at_most(32)),
    (r"(.*_)?(intermediate|ffn_hidden|feed_forward)_(size|dim)|(.*_)?ffn_dim|mlp_dim|d_ff|dff|dim_ff", at_most(INNER)),
    (r"(.*_)?dim_feedforward|n_inner|d_inner|(.*_)?linear_units|encoder_feedforward_dim", at_most(INNER)),
    (r"num_(routed_)?experts|n_routed_experts|num_local_experts|moe_num_experts|zero_expert_num", at_most(EXPERTS)),
    (r"(num_experts_per_tok|num_experts_per_token|moe_k|moe_topk|top_k_experts)", at_most(2)),
    (r"n_group|topk_group|n_groups|num_expert_group|n_shared_experts", at_most(1)),
    (
        r"(.*_)?(hidden_size|hidden_dim|hidden_sizes)(_.*)?|d_model|n_embd|dim|(.*_)?embed_dim|(.*_)?emb_dim",
        at_most(64),
    ),
    (
        r"(.*_)?(embedding_size|projection_dim|embedding_dim|proj_dim|projection_size|output_dim)|latent_dim",
        at_most(64),
    ),
    (r"query_pre_attn_scalar|lru_width|(.*_)?proj_size|embedding_rank|entity_emb_size|d_latents", at_most(64)),
    (r"(.*_)?(output|input)_channels|conv_dim|(.*_)?out_channels|fpn_.*_size|mask_feature_size|neck_.*", at_most(64)),
    (r"image_size|img_size|input_size|crop_size|pretrain_image_size", at_most(IMAGE)),
    (r"patch_size", at_most(PATCH)),
    (r"num_queries|num_detection_tokens|num_query_tokens|num_latents|resampler_n_latents|num_denoising", at_most(10)),
    (r"sliding_window|attention_window_size|local_attention|sliding_window_size|attention_chunk_size", at_most(16)),
    (r"mamba_n_heads|mamba_num_heads", at_most(8)),
    (r"mamba_d_state|state_size|ssm_state_size|mamba_d_head|mamba_head_dim", at_most(16)),
    (r"mamba_chunk_size|chunk_size", at_most(16)),
    (r"window_size", at_most(4)),
    (
        r"xvector_output_dim|classifier_proj_size|num_codevectors_per_group|codevector_dim|proj_codevector_dim",
        at_most(32),
    ),
    (r"num_conv_pos_embeddings|num_conv_pos_embedding_groups", at_most(8)),
)

DEPTHS = re.compile(r"(.*_)?(hidden|layers|blocks|n_layer|n_layers|num_layers|depth)|(.*_)?num_(hidden_)?layers(_.*)?")

LISTS: tuple[tuple[str, Callable[[int], int]], ...] = (
    (r"depths|stage_num_blocks|layers|num_blocks|num_block_repeats|blocks_per_stage", lambda at: 1),
    (r"num_heads|num_attention_heads|num_attention_heads_per_stage", lambda at: 2),
    (
        r"hidden_sizes|embed_dims|embed_dim|encoder_hidden_sizes|neck_hidden_sizes|embed_dim_per_stage",
        lambda at: 16 * (at + 1),
    ),
    (r"tdnn_dim", lambda at: 32),
    (r"image_size", lambda at: IMAGE),
    (r"conv_dim", lambda at: 32),
)

IDS = re.compile(r"(.*_)?(token_id|token_index|_id|_idx)$")


def tiny(
    config_class: type,
    changes: Mapping[str, Any] | None = None,
    ids: dict[str, int] | None = None,
    layers: int = LAYERS,
) -> Any:
    """A configuration of this class with every size that has a rule shrunk. `changes` are passed as they are."""
    ids = {} if ids is None else ids
    default = config_class()
    passed: dict[str, Any] = {}
    asked = {field.name for field in fields(config_class)} if is_dataclass(config_class) else vars(default)
    for name, value in vars(default).items():
        if name not in asked:
            continue
        if name == "backbone_config":
            passed[name] = _backbone(value)
        elif hasattr(value, "model_type") and hasattr(value, "to_dict"):
            passed[name] = tiny(type(value), ids=ids, layers=layers)
        elif name in _PLAIN_IDS:
            if value is not None:
                passed[name] = [_PLAIN_IDS[name]] if isinstance(value, list) else _PLAIN_IDS[name]
        elif IDS.fullmatch(name) and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            passed[name] = ids.setdefault(name, VOCABULARY - 1 - len(ids))
        else:
            small = shrunk(name, value, layers)
            if small != value:
                passed[name] = small
    if "num_key_value_heads" in asked and "num_attention_heads" in passed:
        passed["num_key_value_heads"] = min(KEY_HEADS, passed["num_attention_heads"])
    passed |= _a_layer_of_each_kind(default, asked)
    return config_class(**{**passed, **SPECIAL.get(default.model_type, {}), **(changes or {})})


def _has_rule(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern, _ in RULES)


def _a_layer_of_each_kind(default: Any, asked: Collection[str]) -> dict[str, Any]:
    """Hybrids keep every kind of layer they have, in the order of their first."""
    name = next((name for name in ("layer_types", "layers_block_type") if name in asked), None)
    kinds = list(dict.fromkeys(getattr(default, name, None) or ())) if name else []
    if name is None or len(kinds) < 2 or "num_hidden_layers" not in asked:
        return {}
    return {name: kinds, "num_hidden_layers": len(kinds)}


def _backbone(default: Any) -> Any:
    """As it is by default, tiny; a residual network in place of one that needs another library."""
    from transformers import ResNetConfig

    if getattr(default, "model_type", "timm_backbone") == "timm_backbone":
        return ResNetConfig(
            embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], out_indices=[1, 2, 3, 4]
        )
    number = len(getattr(default, "out_indices", None) or ())
    if hasattr(default, "num_hidden_layers") and not hasattr(default, "depths") and number:
        return tiny(type(default), {"num_hidden_layers": number, "out_indices": list(range(1, number + 1))})
    return tiny(type(default), {"out_indices": default.out_indices} if number else {})


_PLAIN_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "sep_token_id": 2}


def shrunk(name: str, value: Any, layers: int = LAYERS) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value > layers and DEPTHS.fullmatch(name) and not _has_rule(name):
            return layers
        return next((rule(value) for pattern, rule in RULES if re.fullmatch(pattern, name)), value)
    if isinstance(value, list | tuple) and value and all(type(part) is int for part in value):
        rule = next((rule for pattern, rule in LISTS if re.fullmatch(pattern, name)), None)
        if rule is not None:
            return type(value)(rule(at) for at in range(len(value)))
    return value
