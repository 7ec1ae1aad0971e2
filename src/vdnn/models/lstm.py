"""An LSTM layer written out: a loop over time of plain ops, with an optional projection of its state (Sak et al. 2014).

Why not `nn.LSTM`: eager mode runs it fused, a traced graph runs its decomposition, and the two differ in the last
bits; a traced one also skips the dropout between layers. Plain ops are the same ops in both. Letters: L steps, B
batch, I inputs, O outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

CellState = tuple[Tensor, Tensor]  # what the cell shows (B, O) and what it remembers (B, units)


class LSTMLayer(nn.Module):
    """One bias per gate; the gates lie in the order input, forget, candidate, output."""

    def __init__(self, inputs: int, units: int, *, projection: int | None = None) -> None:
        super().__init__()
        self.outputs, self.units = projection or units, units
        self.from_input = nn.Linear(inputs, 4 * units)
        self.from_output = nn.Linear(self.outputs, 4 * units, bias=False)
        self.project = nn.Linear(units, projection, bias=False) if projection else nn.Identity()
        with torch.no_grad():
            self.from_input.bias[units : 2 * units] = 1.0  # forget gates start open (Jozefowicz et al. 2015)

    def forward(self, x_lbi: Tensor) -> Tensor:
        """All steps of a sequence, from a zero state. The inputs' share of the gates is one product for all steps."""
        state, outputs = self.initial_state(x_lbi[0]), []
        for gates in self.from_input(x_lbi).unbind(0):
            state = self.advance(gates, state)
            outputs.append(state[0])
        return torch.stack(outputs)

    def step(self, x_bi: Tensor, state: CellState) -> CellState:
        return self.advance(self.from_input(x_bi), state)

    def advance(self, input_gates: Tensor, state: CellState) -> CellState:
        shown, remembered = state
        i, f, g, o = (input_gates + self.from_output(shown)).chunk(4, dim=-1)
        remembered = f.sigmoid() * remembered + i.sigmoid() * g.tanh()
        return self.project(o.sigmoid() * remembered.tanh()), remembered

    def initial_state(self, x_bi: Tensor) -> CellState:
        return x_bi.new_zeros(x_bi.shape[0], self.outputs), x_bi.new_zeros(x_bi.shape[0], self.units)


def reversed_in_time(layer: LSTMLayer, x_lbi: Tensor) -> Tensor:
    """The layer read from the end of the sentence to its beginning; outputs in the order of the inputs."""
    return layer(x_lbi.flip(0)).flip(0)


def token_embedding(vocabulary: int, width: int) -> nn.Embedding:
    """Small random vectors: the default's unit variance would saturate the gates behind it."""
    embedding = nn.Embedding(vocabulary, width)
    nn.init.uniform_(embedding.weight, -0.1, 0.1)
    return embedding
