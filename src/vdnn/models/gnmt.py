"""GNMT (Wu et al. 2016): eight LSTM layers read a sentence, eight write its translation, attention joins them.

As in the paper: the first encoder layer reads in both directions; residual connections start at the third layer on
each side; the attention asks with the previous output of the lowest decoder layer, and its answer is fed to every
decoder layer. So only that layer has to run step by step with the attention; the layers above see a whole sequence at
once. Sentences here are all of one length. Letters: L target steps, S source steps, B batch, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from vdnn.models.losses import token_cross_entropy
from vdnn.models.lstm import LSTMLayer, reversed_in_time, token_embedding
from vdnn.models.samples import Tokens
from vdnn.models.spec import ModelSpec, Toy

VOCABULARY = 32_000  # the paper's 32K word pieces
LENGTH = 50  # the longest sentence TensorFlow's NMT tutorial, which carries this model, trains on
DROPOUT = 0.2  # the paper's, for WMT English-German and English-French
FIRST_RESIDUAL = 2  # the third layer


class Encoder(nn.Module):
    def __init__(self, vocabulary: int, width: int, depth: int) -> None:
        super().__init__()
        self.words = token_embedding(vocabulary, width)
        self.forwards, self.backwards = LSTMLayer(width, width), LSTMLayer(width, width)
        self.layers = nn.ModuleList(LSTMLayer(2 * width if i == 1 else width, width) for i in range(1, depth))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, source_bs: Tensor) -> Tensor:
        x_sbd = self.dropout(self.words(source_bs.t()))
        x_sbd = torch.cat([self.forwards(x_sbd), reversed_in_time(self.backwards, x_sbd)], dim=-1)
        for number, layer in enumerate(self.layers, start=1):
            y_sbd = layer(self.dropout(x_sbd))
            x_sbd = x_sbd + y_sbd if number >= FIRST_RESIDUAL else y_sbd
        return x_sbd


class Attention(nn.Module):
    """A feed-forward network with one hidden layer scores each source position (Bahdanau et al. 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_query = nn.Linear(width, width, bias=False)
        self.of_key = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, query_bd: Tensor, keys_sbd: Tensor, memory_sbd: Tensor) -> Tensor:
        """`keys_sbd` is `of_key(memory_sbd)`, computed once for all steps."""
        weights_sb1 = self.score((self.of_query(query_bd) + keys_sbd).tanh()).softmax(dim=0)
        return (weights_sb1 * memory_sbd).sum(0)


class Decoder(nn.Module):
    def __init__(self, vocabulary: int, width: int, depth: int) -> None:
        super().__init__()
        self.words = token_embedding(vocabulary, width)
        self.attention = Attention(width)
        self.lowest = LSTMLayer(2 * width, width)
        self.layers = nn.ModuleList(LSTMLayer(2 * width, width) for _ in range(1, depth))
        self.dropout = nn.Dropout(DROPOUT)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, target_bl: Tensor, memory_sbd: Tensor) -> Tensor:
        x_lbd, context_lbd = self.attend(self.dropout(self.words(target_bl.t())), memory_sbd)
        for number, layer in enumerate(self.layers, start=1):
            y_lbd = layer(torch.cat([self.dropout(x_lbd), context_lbd], dim=-1))
            x_lbd = x_lbd + y_lbd if number >= FIRST_RESIDUAL else y_lbd
        return self.head(x_lbd).transpose(0, 1)

    def attend(self, x_lbd: Tensor, memory_sbd: Tensor) -> tuple[Tensor, Tensor]:
        """The lowest layer's outputs, and what the attention answered at each step."""
        keys_sbd = self.attention.of_key(memory_sbd)
        state, outputs, contexts = self.lowest.initial_state(x_lbd[0]), [], []
        for x_bd in x_lbd.unbind(0):
            context = self.attention(state[0], keys_sbd, memory_sbd)
            state = self.lowest.step(torch.cat([x_bd, context], dim=-1), state)
            outputs.append(state[0])
            contexts.append(context)
        return torch.stack(outputs), torch.stack(contexts)


class GNMT(nn.Module):
    """Source (B, S) and the target shifted right (B, L) to logits (B, L, vocabulary)."""

    def __init__(self, *, vocabulary: int = VOCABULARY, width: int = 1024, depth: int = 8) -> None:
        super().__init__()
        self.encoder = Encoder(vocabulary, width, depth)
        self.decoder = Decoder(vocabulary, width, depth)

    def forward(self, source_bs: Tensor, target_bl: Tensor) -> Tensor:
        return self.decoder(target_bl, self.encoder(source_bs))


@dataclass(frozen=True)
class SentencePairs(Tokens):
    """A sentence, its translation so far, and the word that comes next at each position."""

    def __call__(self, batch: int) -> tuple[Tensor, ...]:
        return self.tokens(batch), self.tokens(batch), self.tokens(batch)


SPECS = (
    ModelSpec(
        name="gnmt",
        title="GNMT, 8 + 8 LSTM layers of 1024",
        source="Wu et al. 2016; parameters derived from the layer shapes",
        num_parameters=280_858_880,
        build=GNMT,
        sample=SentencePairs(VOCABULARY, LENGTH),
        loss=token_cross_entropy,
        toy=Toy(partial(GNMT, vocabulary=101, width=16, depth=4), SentencePairs(101, 6)),
    ),
)
