"""A language model of `transformers` in a process of its own: its gradients, and what the process rises by.

Its loss inside, by `labels`, leaves logits that nobody uses; its loss outside is computed between the halves."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel  # by name: its modules are loaded before the process is idle

import vdnn
from vdnn.cli.limited_child import become_idle
from vdnn.errors import BudgetExceeded
from vdnn.runtime.hard_limit import ALLOWED_SHARE, BESIDE_NBYTES, CONTROL_GROUP, enter_group
from vdnn.runtime.process_memory import reset_peak, resident

NUM_WORDS, NUM_STEPS = 8000, 6


Loss = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Trained:
    """Digests of the gradients of every step; what the process rose by at most, over the idle interpreter."""

    digests: tuple[str, ...]
    budget_nbytes: int
    first_nbytes: int
    steady_nbytes: int

    @property
    def allowed_nbytes(self) -> int:
        return int(ALLOWED_SHARE * self.budget_nbytes) + BESIDE_NBYTES[CONTROL_GROUP]


def loss_inside(model: nn.Module, words: Tensor) -> Tensor:
    return model(input_ids=words, labels=words).loss


def loss_outside(model: nn.Module, words: Tensor) -> Tensor:
    logits = model(input_ids=words).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())


def train(loss: Loss, budget: str | int | None, group: Path | None) -> Trained:
    """To be run in a fresh process, plainly without a budget."""
    idle_nbytes = become_idle()
    if group is not None:
        assert isinstance(budget, int), "a limit comes before the first plan, which says what a share is"
        enter_group(group, int(ALLOWED_SHARE * budget) + BESIDE_NBYTES[CONTROL_GROUP])
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=8, n_embd=256, n_head=4, vocab_size=NUM_WORDS, n_positions=256, bos_token_id=1, eos_token_id=2
    )
    plain = GPT2LMHeadModel(config)
    model = plain if budget is None else vdnn.virtualize(plain, budget=budget)
    words = torch.randint(NUM_WORDS, (4, 256))
    digests, peaks_nbytes = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetExceeded)  # the first step shows what a loss outside takes
        for step in range(NUM_STEPS):
            torch.manual_seed(step)
            loss(model, words).backward()
            digests.append(_digest(plain))
            plain.zero_grad(set_to_none=True)
            now = resident()
            assert now is not None
            peaks_nbytes.append(now.peak_nbytes - idle_nbytes)
            reset_peak()
    budget_nbytes = 0 if budget is None else vdnn.report(model).budget_nbytes or 0
    return Trained(tuple(digests), budget_nbytes, peaks_nbytes[0], max(peaks_nbytes[1:]))


def _digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        assert parameter.grad is not None
        found.update(parameter.grad.numpy().tobytes())
    return found.hexdigest()
