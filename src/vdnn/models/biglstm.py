"""BIG LSTM (Jozefowicz et al. 2016, Exploring the Limits of Language Modeling): 2 layers of 8192 projected to 1024.

Nearly all of it is two tables of 793,471 words. Scoring all of them for each of 2560 positions is out of the
question, so training scores the true word and 8192 others, drawn once per step and shared by the batch (importance
sampling). As in the TensorFlow original the draw is log-uniform over words sorted by frequency, scores are corrected
by the log of how often a word is expected in the draw, and a draw that happens to be the true word is masked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  the name everyone knows it by
from torch import Tensor, nn

from vdnn.models.losses import token_cross_entropy
from vdnn.models.lstm import LSTMLayer, token_embedding
from vdnn.models.samples import Tokens
from vdnn.models.spec import ModelSpec, Toy

VOCABULARY = 793_471  # the 1B Word Benchmark with sentence markers
LENGTH = 20  # steps the paper unrolls
NEGATIVES = 8192
DROPOUT = 0.1  # the released code's default; the paper applies it before and after every layer


class SampledSoftmax(nn.Module):
    """An output table that is scored against the truth and a few other words while training."""

    def __init__(self, vocabulary: int, width: int, negatives: int) -> None:
        super().__init__()
        self.vocabulary, self.negatives = vocabulary, negatives
        self.weight = nn.Parameter(torch.empty(vocabulary, width).uniform_(-0.1, 0.1))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, hidden_bld: Tensor, words_bl: Tensor) -> Tensor:
        """Scores (B, L, 1 + negatives); the true word is in column 0."""
        others_n = self.draw(hidden_bld.device)
        true_bl1 = (hidden_bld * F.embedding(words_bl, self.weight)).sum(-1, keepdim=True) + self.bias_of(words_bl)
        scores_bln = F.linear(hidden_bld, F.embedding(others_n, self.weight), self.bias_of(others_n).squeeze(-1))
        same_bln = words_bl.unsqueeze(-1) == others_n
        scores_bln = (scores_bln - self.log_expected(others_n)).masked_fill(same_bln, -math.inf)
        return torch.cat([true_bl1 - self.log_expected(words_bl).unsqueeze(-1), scores_bln], dim=-1)

    def all_scores(self, hidden_bld: Tensor) -> Tensor:
        return F.linear(hidden_bld, self.weight, self.bias)

    def bias_of(self, words: Tensor) -> Tensor:
        return F.embedding(words, self.bias.unsqueeze(-1))

    def draw(self, device: torch.device) -> Tensor:
        """Word k with probability log((k+2)/(k+1)) / log(vocabulary+1), with repetition."""
        uniform = torch.rand(self.negatives, device=device)
        drawn = (uniform * math.log(self.vocabulary + 1)).exp().long() - 1
        return drawn.clamp(0, self.vocabulary - 1)  # rounding may reach one past the end

    def log_expected(self, words: Tensor) -> Tensor:
        """The log of how often a word is expected in the draw."""
        log_odds = torch.log1p(1.0 / (words + 1)).log()
        return log_odds + math.log(self.negatives / math.log(self.vocabulary + 1))


class BigLSTM(nn.Module):
    """Words (B, L) and the words that follow them to sampled scores; without the latter, the scores of all words."""

    def __init__(
        self,
        *,
        vocabulary: int = VOCABULARY,
        units: int = 8192,
        projection: int = 1024,
        depth: int = 2,
        negatives: int = NEGATIVES,
    ) -> None:
        super().__init__()
        self.words = token_embedding(vocabulary, projection)
        self.layers = nn.ModuleList(LSTMLayer(projection, units, projection=projection) for _ in range(depth))
        self.dropout = nn.Dropout(DROPOUT)
        self.softmax = SampledSoftmax(vocabulary, projection, negatives)

    def forward(self, words_bl: Tensor, next_words_bl: Tensor | None = None) -> Tensor:
        x_lbd = self.dropout(self.words(words_bl.t()))
        for layer in self.layers:
            x_lbd = self.dropout(layer(x_lbd))
        hidden_bld = x_lbd.transpose(0, 1)
        if next_words_bl is None:
            return self.softmax.all_scores(hidden_bld)
        return self.softmax(hidden_bld, next_words_bl)


@dataclass(frozen=True)
class SampledTokens(Tokens):
    """Words, the words that follow, and the column of the truth among the sampled scores, which is always 0."""

    def __call__(self, batch: int) -> tuple[Tensor, ...]:
        return self.tokens(batch), self.tokens(batch), torch.zeros(batch, self.length, dtype=torch.int64)


SPECS = (
    ModelSpec(
        name="biglstm",
        title="BIG LSTM, 2 layers of 8192 projected to 1024",
        source="Jozefowicz et al. 2016; parameters derived from the layer shapes, the paper rounds them to 1.8 billion",
        num_parameters=1_776_882_559,
        build=BigLSTM,
        sample=SampledTokens(VOCABULARY, LENGTH),
        loss=token_cross_entropy,
        toy=Toy(partial(BigLSTM, vocabulary=199, units=32, projection=16, negatives=24), SampledTokens(199, 6)),
    ),
)
