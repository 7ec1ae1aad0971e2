"""Recomputation trains as plain PyTorch does: dropout draws the same numbers twice, statistics are updated once.

Networks with dropout (AlexNet), BatchNorm (ResNet), attention (GPT-2 shaped), recurrent cells (BigLSTM) and skip
connections (U-Net), each at toy width, three steps: losses, gradients, parameters, buffers and the random state are
compared bit for bit, and the bytes of every instruction are those that were simulated.
"""

from __future__ import annotations

import copy

import pytest
import torch
from equivalence import assert_measured_as_simulated, assert_same, executors, plan, train, virtualize

from vdnn.models import MODELS
from vdnn.plan.judge.schedule import Kind, schedule
from vdnn.plan.model.bounds import minimum_budget

STRATEGIES = ("recompute-speed", "recompute-memory", "recompute-cost", "checkpoint-sqrt", "superneurons")
NETWORKS = ("alexnet", "resnet50", "gpt2", "biglstm", "unet")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_recomputed_step_is_the_plain_one(name: str, strategy: str) -> None:
    torch.manual_seed(0)
    spec = MODELS[name].small()
    model, args = spec.build(), spec.sample(2)
    plain = copy.deepcopy(model)
    expected = train(spec.step(plain), plain, args)
    virtual = virtualize(spec.step(model), strategy=strategy)
    assert_same(expected, train(virtual, model, args))
    assert_measured_as_simulated(virtual)
    (executor,) = executors(virtual)
    assert any(instruction.kind is Kind.REPLAY for instruction in schedule(executor.plan))


@pytest.mark.parametrize("name", ["alexnet", "vgg16", "resnet50", "inception-v4"])
def test_superneurons_peaks_at_the_largest_single_op(name: str) -> None:
    spec = MODELS[name].small()
    planned = plan(spec.step(spec.build()), spec.sample(2), strategy="superneurons")
    assert planned.peak_nbytes == minimum_budget(planned.problem)[0]
