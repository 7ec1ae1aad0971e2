"""`package.module:factory`: the user's own network, what it may return, and what is said when it cannot be used."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vdnn.errors import InvalidInput
from vdnn.models import load, resolve

HEADER = "import torch\nfrom torch import nn\n"
numbers = itertools.count()  # a module once imported stays imported: every test writes a file of its own name
Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module into the current directory and returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])

    def write_module(text: str) -> str:
        name = f"users_module_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(HEADER + text)
        return name

    return write_module


def test_a_factory_in_the_current_directory_is_found_and_called_with_the_batch(write: Write) -> None:
    module = write("def net(batch):\n    return nn.Linear(3, 1), torch.ones(batch, 3)\n")
    work = load(f"{module}:net", 5)
    assert work.name == f"{module}:net"
    assert [tuple(arg.shape) for arg in work.args] == [(5, 3)]


def test_a_factory_runs_on_the_device_that_was_asked_for(write: Write) -> None:
    module = write("def net(batch):\n    return nn.Linear(3, 1), torch.ones(batch, 3)\n")
    work = load(f"{module}:net", 5, device="meta")
    assert work.args[0].is_meta
    assert next(work.model.parameters()).is_meta


def test_its_loss_function_is_applied_to_the_output(write: Write) -> None:
    module = write(
        "def net(batch):\n    return nn.Flatten(), (torch.ones(batch, 3),), lambda output: 10 * output.mean()\n"
    )
    work = load(f"{module}:net", 2)
    assert work.step(*work.args).item() == 10


def test_without_a_loss_function_a_scalar_output_is_the_loss(write: Write) -> None:
    module = write(
        "class Half(nn.Module):\n    def forward(self, x, y):\n        return (x - y).pow(2).mean() / 2\n"
        "def net(batch):\n    return Half(), (torch.zeros(batch), torch.full((batch,), 4.0))\n"
    )
    work = load(f"{module}:net", 3)
    assert work.step(*work.args).item() == 8


def test_without_a_loss_function_all_float_tensors_of_the_output_are_summed(write: Write) -> None:
    module = write(
        "class Many(nn.Module):\n    def forward(self, x):\n"
        "        return {'a': x, 'b': [x.sum(), (2 * x, None)], 'n': torch.tensor(100)}\n"
        "def net(batch):\n    return Many(), torch.ones(batch, 2)\n"
    )
    work = load(f"{module}:net", 3)
    assert work.step(*work.args).item() == 6 + 6 + 12


def test_gradients_reach_the_users_parameters(write: Write) -> None:
    module = write("def net(batch):\n    return nn.Linear(3, 1), torch.ones(batch, 3)\n")
    work = load(f"{module}:net", 4)
    work.step(*work.args).backward()
    weight = work.model.get_parameter("weight")
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.full((1, 3), 4.0))


# ---------------------------------------------------------------------------------------------------- what goes wrong


def test_a_module_that_is_not_there_is_named_with_the_way_out() -> None:
    with pytest.raises(InvalidInput, match=r"cannot import 'no_such_module'.*\n.*PYTHONPATH"):
        resolve("no_such_module:net")


def test_a_module_that_fails_while_imported_says_how_and_keeps_the_cause(write: Write) -> None:
    module = write("raise RuntimeError('no licence')\n")
    with pytest.raises(InvalidInput, match="RuntimeError: no licence") as caught:
        resolve(f"{module}:net")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_factory_that_is_not_there_is_answered_with_those_that_are(write: Write) -> None:
    module = write("def tiny(batch): ...\ndef huge(batch): ...\n")
    with pytest.raises(InvalidInput, match=f"module '{module}' has no 'net'. It defines: huge, tiny"):
        resolve(f"{module}:net")


def test_a_factory_that_cannot_be_called_is_refused(write: Write) -> None:
    module = write("net = 3\n")
    with pytest.raises(InvalidInput, match="an object of type int and cannot be called"):
        resolve(f"{module}:net")


@pytest.mark.parametrize("name", [":net", "module:"])
def test_half_a_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"write it as package\.module:factory"):
        resolve(name)


def test_a_factory_that_raises_is_named_and_its_cause_is_kept(write: Write) -> None:
    module = write("def net(batch):\n    raise KeyError('weights')\n")
    with pytest.raises(InvalidInput, match=rf"{module}:net\(7\) raised KeyError: 'weights'") as caught:
        load(f"{module}:net", 7)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("None", "returned None: a factory takes the batch and returns"),
        ("nn.Identity()", "returned an object of type Identity"),
        ("(1, 2, 3, 4)", "returned a tuple of 4"),
        ("('net', torch.ones(1))", "an object of type str as its model, not an nn.Module"),
        ("(nn.Identity(), 3)", "an object of type int as args"),
        ("(nn.Identity(), ())", "a tuple of 0 as args"),
        ("(nn.Identity(), (torch.ones(1), 'x'))", r"args\[1\] is an object of type str, not a tensor"),
        ("(nn.Identity(), torch.ones(1), 5)", "an object of type int as its loss_fn"),
    ],
)
def test_a_factory_that_returns_something_else_is_told_what_and_what_was_wanted(
    write: Write, returned: str, words: str
) -> None:
    module = write(f"def net(batch):\n    return {returned}\n")
    with pytest.raises(InvalidInput, match=words):
        load(f"{module}:net", 1)


def test_a_loss_function_that_returns_no_scalar_is_refused_when_the_step_runs(write: Write) -> None:
    module = write("def net(batch):\n    return nn.Identity(), torch.ones(batch, 2), lambda output: output\n")
    work = load(f"{module}:net", 3)
    with pytest.raises(InvalidInput, match=r"loss_fn returned a Tensor of shape \(3, 2\), not a scalar"):
        work.step(*work.args)


def test_an_output_without_a_float_tensor_has_no_loss(write: Write) -> None:
    module = write("def net(batch):\n    return nn.Identity(), torch.ones(batch, dtype=torch.int64)\n")
    work = load(f"{module}:net", 3)
    with pytest.raises(InvalidInput, match="holds no float tensor"):
        work.step(*work.args)


@pytest.mark.parametrize(
    ("option", "words"), [({"small": True}, "no small variant"), ({"image_size": 64}, "its own sample")]
)
def test_options_of_the_zoo_do_not_apply_to_a_users_factory(write: Write, option: dict[str, int], words: str) -> None:
    module = write("def net(batch):\n    return nn.Identity(), torch.ones(batch)\n")
    with pytest.raises(InvalidInput, match=words):
        load(f"{module}:net", 1, **option)  # type: ignore[arg-type]
