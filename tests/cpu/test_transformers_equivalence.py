"""Models of the transformers library, with random weights, train bit for bit and in the bytes that were simulated."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from equivalence import assert_measured_as_simulated, assert_same, executors, train, virtualize
from nets import EITHER_FRONT_END, options
from torch import Tensor, nn

from larger import all_but_larger
from where import seeded

pytestmark = pytest.mark.any_device

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[dev]'")
transformers.logging.set_verbosity_error()

WORDS = torch.randint(0, 100, (2, 12), generator=seeded(0))
PICTURES = torch.randn(2, 3, 32, 32, generator=seeded(0))
ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def gpt2(attention: str) -> nn.Module:
    config = transformers.GPT2Config(vocab_size=100, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel._from_config(config, attn_implementation=attention)
    model.loss_type = "ForCausalLM"  # left to guess it, the library logs from inside the step, which breaks capture
    return model


def bert(attention: str) -> nn.Module:
    config = transformers.BertConfig(vocab_size=100, **ENCODER)
    return transformers.BertForMaskedLM._from_config(config, attn_implementation=attention)


def vit(attention: str) -> nn.Module:
    # Without a problem type the first step writes it into the configuration, and the second is captured anew.
    problem = {"image_size": 32, "patch_size": 8, "num_labels": 5, "problem_type": "single_label_classification"}
    config = transformers.ViTConfig(**problem, **ENCODER)
    return transformers.ViTForImageClassification._from_config(config, attn_implementation=attention)


CASES: dict[str, tuple[Callable[[str], nn.Module], dict[str, Tensor]]] = {
    "gpt2": (gpt2, {"input_ids": WORDS, "labels": WORDS}),
    "bert": (bert, {"input_ids": WORDS, "labels": WORDS}),
    "vit": (vit, {"pixel_values": PICTURES, "labels": torch.tensor([1, 2])}),
}


def step_of(model: Any, names: tuple[str, ...]) -> Callable[..., tuple[Tensor, Any]]:
    """The loss, and beside it all that the model returned: a training loop holds that until backward is over."""

    def step(*args: Tensor) -> tuple[Tensor, Any]:
        output = model(**dict(zip(names, args, strict=True)))
        return output.loss, output

    return step


def loss_of(model: Any, names: tuple[str, ...]) -> Callable[..., Tensor]:
    return lambda *args: model(**dict(zip(names, args, strict=True))).loss


FEW = (("gpt2", "sdpa"), ("bert", "eager"))


@pytest.mark.parametrize(("name", "attention"), all_but_larger(FEW, product(CASES, ["sdpa", "eager"])))
@EITHER_FRONT_END
def test_a_transformers_model_trains_as_planned(front_end: str, name: str, attention: str) -> None:
    make, inputs = CASES[name]
    torch.manual_seed(0)
    model = make(attention).train()
    names, args = tuple(inputs), tuple(inputs.values())
    plain = copy.deepcopy(model)
    expected = train(step_of(plain, names), plain, args)
    if front_end == "just in time":
        virtual: Any = virtualize(model)
        step: Any = step_of(virtual, names)
    else:
        virtual = step = virtualize(loss_of(model, names), **options(front_end, *args))
    assert_same(expected, train(step, model, args))
    assert len(executors(virtual)) == 1
    assert_measured_as_simulated(virtual)
