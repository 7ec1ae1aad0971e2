"""Architectures of the transformers library train as plain PyTorch trains them: a spread of what `make zoo` runs.

One way each. What `zoo/exceptions.json` says is not equal must not be, so that who mends it takes it out.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

from larger import larger
from zoo import exceptions

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[dev]'")

from zoo.made import Made, made
from zoo.run import kept_rows, run
from zoo.table import as_json, as_markdown
from zoo.ways import DIED, DIFFERS, EQUAL, REFUSED, Row, found_differences, rows, trained

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own, as `make zoo` ignores them

SPREAD = (
    ("bert", "bf16"),
    ("convnext", "keep-all"),
    ("gemma3_text", "keep-all"),
    ("gpt2", "60%"),
    ("llama", "keep-all"),
    ("mixtral", "keep-all"),
    ("qwen2", "60%"),
    ("qwen3", "keep-all"),
    ("resnet", "bf16"),
    ("swin", "keep-all"),
    ("t5", "keep-all"),
    ("vit", "60%"),
    *larger(
        ("bart", "keep-all"),
        ("deberta-v2", "keep-all"),
        ("detr", "keep-all"),
        ("llava", "keep-all"),
        ("mamba", "keep-all"),
        ("segformer", "keep-all"),
        ("wav2vec2", "keep-all"),
        ("whisper", "keep-all"),
    ),
)


@pytest.mark.parametrize(("architecture", "way"), SPREAD)
def test_an_architecture_trains_as_plain_pytorch_trains_it(architecture: str, way: str) -> None:
    (row,) = rows(made(architecture, layers=1), [way], hardware="titan-x")
    assert row.verdict in (EQUAL, DIFFERS, REFUSED), f"plain PyTorch does not train it: {row.cause}"
    assert not exceptions.surprises([row]), "\n".join((row.cause, *row.detail))


@pytest.fixture(scope="module")
def bert() -> Made:
    return made("bert")


def test_a_weight_that_is_a_little_off_is_a_difference(bert: Made) -> None:
    off = copy.deepcopy(bert.model)
    with torch.no_grad():
        next(off.parameters())[5, 0] += 1e-6
    plain, other = (trained(copy.deepcopy(model), bert, narrow=False) for model in (bert.model, off))
    assert any("gradient of" in line for line in found_differences(plain, other))


def row(verdict: str, architecture: str = "bert") -> Row:
    return Row(architecture, "keep-all", verdict, "gradients have other bits")


def test_a_failure_that_is_not_known_is_a_surprise() -> None:
    assert exceptions.surprises([row(DIFFERS)], {})
    assert not exceptions.surprises([row(DIFFERS)], {"bert": {"keep-all": "why"}})


def test_a_known_failure_that_is_equal_now_has_to_leave_the_list() -> None:
    assert exceptions.surprises([row(EQUAL)], {"bert": {"keep-all": "why"}})
    assert not exceptions.surprises([row(EQUAL)], {})


def test_the_table_groups_failures_by_cause() -> None:
    text = as_markdown([row(DIFFERS), row(DIFFERS, "gpt2"), row(EQUAL, "vit")], {"torch": "2.13"})
    assert "gradients have other bits | 2: bert" in text
    assert "| keep-all | 3 | 1 | 33.3 % |" in text
    assert len(json.loads(as_json([row(DIFFERS)], {}))["rows"]) == 1


def test_an_architecture_that_takes_too_long_costs_its_own_row(tmp_path: Path) -> None:
    assert list(run(["bert", "no such architecture"], ["keep-all"], tmp_path, jobs=1, max_processor_s=1))
    assert [found.verdict for found in kept_rows(tmp_path, "bert")] == [DIED]


def test_what_was_run_is_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "bert.jsonl").write_text(
        json.dumps({"architecture": "bert", "way": "keep-all", "verdict": EQUAL}) + "\n"
    )
    assert list(run(["bert"], ["keep-all"], tmp_path, jobs=1)) == ["bert"]
    assert not (tmp_path / "bert.log").exists()
