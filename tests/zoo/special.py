"""What the names of fields do not say, by the type of a configuration: sizes that have to agree with each other."""

from __future__ import annotations

from typing import Any

_STAGES = {"image_size": 64, "window_size": 2}
_CHANNELS = {"encoder_in_channels": [32, 48, 64], "decoder_in_channels": [64, 64, 64]}

SPECIAL: dict[str, dict[str, Any]] = {
    "bit": {"num_groups": 8, "hidden_sizes": [16, 32, 48, 64], "embedding_size": 16},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "donut-swin": _STAGES,
    "esmc": {"vocab_size": 128},
    "focalnet": {"embed_dim": 16},
    "glpn": {"decoder_hidden_size": 64, "hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [2, 2, 2, 2]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 16},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "layoutlmv3": {"coordinate_size": 8, "shape_size": 16, "input_size": 32},
    "levit": {"image_size": 64, "hidden_sizes": [16, 32, 48], "num_attention_heads": [2, 2, 2], "key_dim": [8, 8, 8]},
    "lilt": {"hidden_size": 48, "channel_shrink_ratio": 4, "num_attention_heads": 4},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1, "state_size": 16},
    "ministral": {"head_dim": 8},
    "mobilevitv2": {"image_size": 64},
    "nemotron": {"head_dim": 8},
    "poolformer": {"hidden_sizes": [16, 32, 48, 64]},
    "rt_detr": _CHANNELS,
    "rt_detr_v2": _CHANNELS,
    "swin": _STAGES,
    "swinv2": {**_STAGES, "embed_dim": 16},
    "wav2vec2-bert": {"vocab_size": 128},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
}
