"""Passes have names: they are logged, left out and refused by them, and they work on a copy of what was traced."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from capture_once import captured_once
from equivalence import Outcome, assert_same, plan, train, virtualize
from formed import joint_of
from nets import ConvNet, Using, images
from torch import Tensor, fx, nn

from vdnn.capture.copied_graph import copy_of
from vdnn.capture.nodes import phase_of
from vdnn.capture.tidy import loss_backward
from vdnn.capture.tidy.passes import PASSES, tidy
from vdnn.capture.tidy.peak import keep_all_peak_nbytes
from vdnn.environment import SKIP_PASSES
from vdnn.errors import InvalidInput
from vdnn.plan import Plan

FREE = [each.name for each in PASSES if not each.needed]
NEEDED = [each.name for each in PASSES if each.needed]


class Everything(ConvNet):
    """Each pass finds something: statistics, dropout, an input that is written, views, attention, a cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))
        self.words = nn.Linear(8, 40)

    def forward(self, images: Tensor) -> Tensor:
        features = self.dropout(self.features(images))
        scaled = features * (1 + self.seen.sigmoid().view(1, 8, 1, 1))
        self.seen.copy_(features.detach().mean((0, 2, 3)))
        queries = scaled.flatten(2).transpose(1, 2).unsqueeze(1)
        mixed = F.scaled_dot_product_attention(queries, queries, queries).squeeze(1).mean(1)
        logits = self.words(mixed.relu() + self.linear(mixed).exp().sum(1, keepdim=True))
        return F.cross_entropy(logits, torch.arange(len(images)))


def everything() -> nn.Module:
    torch.manual_seed(0)
    return Everything()


def trained(**options: Any) -> Any:
    model = everything()
    with captured_once("everything"):
        step = virtualize(model, **options) if options else model
    return train(step, model, (images(),))


def planned(**options: Any) -> Plan:
    with captured_once("everything"):
        return plan(everything(), (images(),), **options)


@pytest.fixture(scope="module")
def plain() -> Outcome:
    return trained()


@pytest.fixture(scope="module")
def traced() -> fx.GraphModule:
    """The joint graph of a step of `everything()`, which nobody changes."""
    with joint_of(everything(), (images(),)) as joint:
        return joint


def shown(graph: fx.Graph) -> list[Any]:
    return [(node.name, node.target, str(node.args), str(node.kwargs), phase_of(node)) for node in graph.nodes]


def changed_by(joint: fx.GraphModule, name: str) -> bool:
    return shown(tidy(joint, skip=[name]).graph) != shown(tidy(joint, skip=[]).graph)


@pytest.fixture(autouse=True)
def small_losses_run_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_backward, "WORTH_PARTS_NBYTES", 1)


def test_what_was_traced_stays_as_it_was(traced: fx.GraphModule) -> None:
    before, code = shown(traced.graph), traced.code
    tidied = tidy(traced)
    assert shown(traced.graph) == before
    assert traced.code == code
    assert shown(tidied.graph) != before
    assert set(traced.graph.nodes).isdisjoint(tidied.graph.nodes)


def test_a_copy_has_the_names_of_the_traced_graph_and_can_make_no_code(traced: fx.GraphModule) -> None:
    copy = copy_of(traced)
    assert shown(copy.graph) == shown(traced.graph)
    with pytest.raises(NotImplementedError):
        copy(images())


@pytest.mark.parametrize("name", FREE)
@pytest.mark.parametrize("options", [{"strategy": "keep-all"}, {"budget": "95%", "hardware": "titan-x"}], ids=str)
def test_a_step_without_a_pass_trains_with_the_same_bits(
    name: str, options: dict[str, Any], plain: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SKIP_PASSES, name)
    assert_same(plain, trained(sample=(images(),), **options))


@pytest.mark.parametrize("name", FREE)
def test_a_pass_that_can_be_left_out_has_something_to_do_here(name: str, traced: fx.GraphModule) -> None:
    assert changed_by(traced, name) or name == "getitems"  # AOTAutograd unpacks results at once in most graphs


def test_a_step_without_any_pass_that_can_be_left_out_trains_with_the_same_bits(
    plain: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SKIP_PASSES, " , ".join(FREE))
    assert_same(plain, trained(strategy="keep-all"))


@pytest.mark.parametrize("name", NEEDED)
def test_a_pass_that_bits_or_plans_rest_on_is_not_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SKIP_PASSES, f"in-place,{name}")
    reason = next(each.needed for each in PASSES if each.name == name)
    with pytest.raises(InvalidInput, match=re.escape(f"({name}: {reason}). Others: {', '.join(FREE)}")):
        planned()


def test_a_name_that_no_pass_has_is_refused_with_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SKIP_PASSES, "in-palce")
    every = re.escape(", ".join(each.name for each in PASSES))
    with pytest.raises(InvalidInput, match=f"VDNN_SKIP_PASSES names no pass by in-palce. The passes: {every}"):
        planned()


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    with caplog.at_level(level, logger="vdnn.passes"):
        planned()
    return [record.getMessage() for record in caplog.records if record.name == "vdnn.passes"]


def test_each_pass_logs_what_it_changed(caplog: pytest.LogCaptureFixture) -> None:
    found = lines(caplog, logging.INFO)
    assert [line.partition(":")[0] for line in found] == [each.name for each in PASSES]
    assert all(re.fullmatch(r"[a-z-]+: \d+ -> \d+ nodes, \d+\.\d\d s", line) for line in found)


def test_the_peak_is_logged_for_who_looks_closely(caplog: pytest.LogCaptureFixture) -> None:
    *_, last, _ = lines(caplog, logging.DEBUG)
    assert re.fullmatch(r"in-place: \d+ -> \d+ nodes, peak [\d.]+ -> [\d.]+ KiB, \d+\.\d\d s", last)


@pytest.mark.parametrize("skip", [[], FREE], ids=["tidy", "without passes"])
def test_the_logged_peak_is_that_of_keeping_all(
    skip: list[str], traced: fx.GraphModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SKIP_PASSES, ",".join(skip))
    found = keep_all_peak_nbytes(tidy(traced).graph)
    assert found == planned(strategy="keep-all").peak_nbytes


def test_a_model_that_is_only_evaluated_is_tidied_too() -> None:
    model = Using(lambda self, x: self.norm(x).relu(), norm=nn.BatchNorm2d(3)).eval()
    with torch.no_grad():
        assert torch.equal(virtualize(model)(images()), model(images()))
