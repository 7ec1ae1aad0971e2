"""Models of the transformers library do not notice that they are captured: they compute what they do in eager mode.

With the settings that tell the branches apart: several query heads to a key head, 64 tokens, masks with and without
padding, labels.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from equivalence import assert_same, executors, train, virtualize
from torch import Tensor, nn

from where import seeded

pytestmark = pytest.mark.any_device

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[dev]'")
transformers.logging.set_verbosity_error()

WORDS = torch.randint(3, 100, (2, 64), generator=seeded(0))
ALL, PADDED = torch.ones_like(WORDS), torch.ones_like(WORDS)
PADDED[1, 40:] = 0
SIZES: dict[str, Any] = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
GROUPED = SIZES | {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
DECODERS = {
    "Llama": GROUPED,
    "Qwen2": GROUPED,
    "Qwen3": GROUPED,
    "Gemma3": GROUPED
    | {"sliding_window": 32, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
}
FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"


def decoder(name: str) -> nn.Module:
    torch.manual_seed(0)
    kind = {"Gemma3": "Gemma3Text"}.get(name, name)
    return getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{kind}Config")(**DECODERS[name])).train()


def loss_of(model: Any, **inputs: Tensor) -> Callable[[], Tensor]:
    return lambda: model(**inputs).loss


def trained_alike(model: nn.Module, *steps: dict[str, Tensor], **options: Any) -> Any:
    """Each batch in turn, a step or two; the virtualized model. With a budget a further shape runs as it is at first,
    so each comes twice."""
    virtual = virtualize(copy.deepcopy(model), **options)
    for inputs in steps:
        expected = train(loss_of(model, **inputs), model, (), steps=2)
        assert_same(expected, train(loss_of(virtual, **inputs), virtual, (), steps=2))
    return virtual


def words(mask: Tensor | None = None) -> dict[str, Tensor]:
    return {"input_ids": WORDS, "labels": WORDS} | ({} if mask is None else {"attention_mask": mask})


def ops_of(virtual: Any) -> list[Counter[str]]:
    return [Counter(str(op.target) for op in executor.plan.problem.graph.ops) for executor in executors(virtual)]


def test_a_decoder_with_grouped_heads_has_one_fused_attention_and_repeats_no_keys() -> None:
    """Without a mask, with one that masks nothing, and not with padding: that is eager's rule."""
    virtual = trained_alike(decoder("Llama"), words(), words(ALL), words(PADDED))
    whole, unpadded, padded = ops_of(virtual)
    assert whole == unpadded != padded
    assert whole[FLASH] == 1, "one per layer"
    (heads,) = {
        graph.values[op.reads[1].value].shape[1]
        for graph in (executor.plan.problem.graph for executor in executors(virtual)[:2])
        for op in graph.ops
        if op.target == FLASH
    }
    assert heads == GROUPED["num_key_value_heads"]


@pytest.mark.parametrize("options", [{}, {"budget": "60%"}], ids=["keep-all", "60 %"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_with_grouped_heads_trains_as_in_eager_mode(name: str, options: dict[str, Any]) -> None:
    virtual = trained_alike(decoder(name), words(ALL), **options)
    assert len(executors(virtual)) == 1, "one whole graph"


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`-wrapped function")
@pytest.mark.parametrize("options", [{}, {"budget": "80%"}], ids=["keep-all", "80 %"])
def test_a_mixture_of_experts_calls_the_product_of_groups_that_eager_mode_calls(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**GROUPED, num_local_experts=4)).train()
    virtual = trained_alike(model, words(), **options)
    (ops,) = ops_of(virtual)
    assert ops["aten._grouped_mm.default"] == 6, "up and down, forward and for both gradients"
