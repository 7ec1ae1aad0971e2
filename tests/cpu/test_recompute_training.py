"""Recomputation trains as plain PyTorch does: dropout draws the same numbers twice, statistics are updated once.

Networks with dropout (AlexNet), BatchNorm (ResNet), attention (GPT-2 shaped), recurrent cells (BigLSTM) and skip
connections (U-Net), each at toy width, three steps: losses, gradients, parameters, buffers and the random state are
compared bit for bit, and the bytes of every instruction are those that were simulated.
"""

from __future__ import annotations

import copy
from itertools import product

import pytest
from capture_once import captured_once
from equivalence import assert_measured_as_simulated, assert_same, executors, plan, train, virtualize
from small_networks import small_network

from larger import all_but_larger, larger
from vdnn.plan.judge.schedule import Kind, schedule
from vdnn.plan.model.bounds import minimum_budget

pytestmark = pytest.mark.any_device

STRATEGIES = ("recompute-speed", "recompute-memory", "recompute-cost", "checkpoint-sqrt", "superneurons")
NETWORKS = ("alexnet", "resnet50", "gpt2", "biglstm", "unet")


FEW = (
    *product(["alexnet"], STRATEGIES),
    ("resnet50", "recompute-memory"),
    ("gpt2", "checkpoint-sqrt"),
    ("biglstm", "recompute-speed"),
    ("unet", "superneurons"),
)
"""Every strategy on a chain with dropout, and every kind of network once."""


@pytest.mark.parametrize(("name", "strategy"), all_but_larger(FEW, product(NETWORKS, STRATEGIES)))
def test_a_recomputed_step_is_the_plain_one(name: str, strategy: str) -> None:
    spec, original, args, expected = small_network(name)
    model = copy.deepcopy(original)
    with captured_once(name, 2):
        virtual = virtualize(spec.step(model), sample=args, strategy=strategy)
    assert_same(expected, train(virtual, model, args))
    assert_measured_as_simulated(virtual)
    (executor,) = executors(virtual)
    assert any(instruction.kind is Kind.REPLAY for instruction in schedule(executor.plan))


@pytest.mark.parametrize("name", ["alexnet", "resnet50", *larger("vgg16", "inception-v4")])
def test_superneurons_peaks_at_the_largest_single_op(name: str) -> None:
    spec, model, args, _ = small_network(name)
    with captured_once(name, 2):
        planned = plan(spec.step(model), args, strategy="superneurons")
    assert planned.peak_nbytes == minimum_budget(planned.problem)[0]
