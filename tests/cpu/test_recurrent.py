"""Recurrent layers are captured as what eager mode runs: fused layers where oneDNN has them, else the ops of cells."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from equivalence import (
    assert_measured_as_simulated,
    assert_same,
    check,
    executors,
    only_graph,
    plan,
    train,
    virtualize,
)
from nets import EITHER_FRONT_END, PYTORCH_MAY_WARN, Using, backward, options
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import vdnn
from larger import larger
from vdnn.torch_private import start_recording_memory, stop_recording_memory

STEPS, BATCH, WIDTH = 4, 3, 10
"""Rows of 10 numbers end in the middle of a vector, where kernels have other last bits for other layouts."""

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(6, WIDTH, 2, dropout=0.4),
    "lstm both ways": lambda: nn.LSTM(6, WIDTH, bidirectional=True, batch_first=True),
    "lstm with projections": lambda: nn.LSTM(6, WIDTH, proj_size=5),
    "lstm without biases": lambda: nn.LSTM(6, WIDTH, bias=False),
    "lstm in float64": lambda: nn.LSTM(6, WIDTH, 2, dropout=0.4, dtype=torch.float64),
    "gru": lambda: nn.GRU(6, WIDTH, 2, dropout=0.4),
    "gru both ways": lambda: nn.GRU(6, WIDTH, bidirectional=True, batch_first=True),
    "rnn": lambda: nn.RNN(6, WIDTH, 2, dropout=0.4),
    "rnn with relu": lambda: nn.RNN(6, WIDTH, nonlinearity="relu", bidirectional=True),
}


def in_turn(cell: nn.Module) -> Callable[[Any, Tensor], Tensor]:
    def run(self: Any, x: Tensor) -> Tensor:
        state, seen = None, []
        for each in x:
            state = self.cell(each, state)
            seen.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(seen)

    return run


def with_layer(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layer = LAYERS[name]()
    model = Using(lambda self, x: self.layer(x)[0], layer=layer)
    return model, torch.randn(STEPS, BATCH, 6, dtype=next(layer.parameters()).dtype)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@EITHER_FRONT_END
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_has_eagers_bits_in_one_graph(name: str, front_end: str) -> None:
    model, x = with_layer(name)
    plain, virtual = copy.deepcopy(model), virtualize(model, **options(front_end, x))
    assert_same(train(square(plain), plain, (x,), 2), train(square(virtual), virtual, (x,), 2))
    assert len(executors(virtual)) == 1


def square(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: model(x).square().mean()


@EITHER_FRONT_END
@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("width", [WIDTH, 24])
def test_a_cell_has_eagers_bits_in_one_graph(cell: Any, width: int, front_end: str) -> None:
    torch.manual_seed(0)
    made, x = cell(6, width), torch.randn(STEPS, 8, 6)
    model = Using(in_turn(made), cell=made)
    plain, virtual = copy.deepcopy(model), virtualize(model, **options(front_end, x))
    assert_same(train(square(plain), plain, (x,), 2), train(square(virtual), virtual, (x,), 2))
    assert len(executors(virtual)) == 1


def test_the_workspace_of_a_fused_layer_is_planned_to_the_byte() -> None:
    model, x = with_layer("lstm")
    virtual = virtualize(lambda x: model(x).square().mean())
    for _ in range(2):
        virtual(x).backward()
    assert_measured_as_simulated(virtual)
    graph = only_graph(virtual)
    sizes = [storage.nbytes for storage in graph.storages if storage.name.startswith("mkldnn_rnn_layer")]
    assert max(sizes) > 10 * x.nbytes


def test_a_layer_too_large_to_be_asked_is_planned_from_shorter_ones() -> None:
    """Without running it: 4 GiB of outputs on the device that only describes."""
    layer = nn.LSTM(64, 1024, device="meta")
    large = plan(layer, torch.empty(4096, 256, 64, device="meta"))
    assert large.peak_nbytes > 4 * 4096 * 256 * 1024 * 4  # four gates of every token


class LanguageModel(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Embedding(words, width), nn.LSTM(width, width, 2, dropout=0.3)
        self.drop, self.out = nn.Dropout(0.2), nn.Linear(width, words)

    def forward(self, words: Tensor, target: Tensor) -> Tensor:
        states, _ = self.layers(self.embedding(words))
        return F.cross_entropy(self.out(self.drop(states)).flatten(0, 1), target.flatten())


@pytest.mark.parametrize(("words", "width", "batch"), [(500, 32, 4), *larger((4000, 128, 16))])
def test_a_language_model_trains_in_half_of_eagers_peak(words: int, width: int, batch: int) -> None:
    torch.manual_seed(0)
    model = LanguageModel(words, width)
    x = torch.randint(words, (128, batch)), torch.randint(words, (128, batch))
    nbytes = eager_peak_nbytes(copy.deepcopy(model), x) // 2
    plain, virtual = copy.deepcopy(model), virtualize(model, budget=f"{nbytes}B")
    assert_same(train(plain, plain, x), train(virtual, model, x))
    (executor,) = executors(virtual)
    assert executor.measured.timeline is not None
    assert executor.measured.timeline.peak_nbytes <= nbytes
    assert vdnn.report(virtual).strategy == "auto"


def eager_peak_nbytes(model: nn.Module, x: tuple[Tensor, ...]) -> int:
    """By the allocator's own events."""
    there = sum(tensor.nbytes for tensor in (*model.parameters(), *x))
    start_recording_memory()
    model(*x).backward()
    return there + max(itertools.accumulate(stop_recording_memory()))


def packed(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
    states, _ = self.layer(pack_padded_sequence(x, lengths, enforce_sorted=False))
    return pad_packed_sequence(states)[0]


@PYTORCH_MAY_WARN
@pytest.mark.parametrize("asked", [{}, {"budget": "90%"}])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences_train_as_they_are(kind: Any, asked: Any) -> None:
    """How long their tensors are is known only from the lengths, so no graph holds for the next batch."""
    torch.manual_seed(0)
    model = Using(packed, layer=kind(6, WIDTH, bidirectional=True))
    x, lengths = torch.randn(6, 16, 6), torch.randint(1, 6, (16,))
    check(model, lambda virtual: backward(lambda x: virtual(x, lengths), x), **asked)


def test_a_layer_without_gradients_has_no_workspace() -> None:
    model, x = with_layer("lstm")
    virtual = virtualize(copy.deepcopy(model))
    backward(virtual, x)
    with torch.inference_mode():
        assert torch.equal(virtual.eval()(x), model.eval()(x))
