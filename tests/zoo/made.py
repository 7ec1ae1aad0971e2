"""A tiny model of an architecture with a batch that it trains on: the first head and the first guess of a batch that
leave a finite loss and a gradient in plain PyTorch."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from zoo.batches import BATCH, TOKENS, Batch, Maker, loss_of
from zoo.heads import Head, class_of, config_class_of, heads
from zoo.shrink import HIDDEN, LAYERS, tiny

SEED = 1
MAX_WEIGHTS = 8_000_000
"""What is larger has a size that no rule knows; it is named, not trained."""


class CannotMake(Exception):
    """No head of it trains in plain PyTorch as it was made here. Says what went wrong with each."""


@dataclass
class Made:
    architecture: str
    head: Head
    model: nn.Module
    batch: Batch
    has_loss: bool
    failures: list[str] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.batch)


def made(architecture: str, layers: int = LAYERS) -> Made:
    failures: list[str] = []
    try:
        config = configuration(architecture, layers)
    except Exception as why:
        raise CannotMake(f"configuration: {_words(why)}") from why
    for head in heads()[architecture]:
        found = _with_head(architecture, copy.deepcopy(config), head, failures)
        if found is not None:
            return found
    raise CannotMake("; ".join(failures[:6]) or "no head")


def configuration(architecture: str, layers: int = LAYERS) -> Any:
    config = tiny(config_class_of(architecture), layers=layers)
    for part in (config, *(getattr(config, name) for name in getattr(config, "sub_configs", {}))):
        for name, number in (("pad_token_id", 0), ("decoder_start_token_id", 1)):
            if getattr(part, name, None) is None:
                setattr(part, name, number)
    return config


def _with_head(architecture: str, config: Any, head: Head, failures: list[str]) -> Made | None:
    torch.manual_seed(SEED)
    if "CLASSIFICATION" in head.task:
        config.problem_type = "single_label_classification"
    try:
        model = class_of(head)(config).float().train()
    except Exception as why:
        failures.append(f"{head.class_name}: {_words(why)}")
        return None
    number = sum(parameter.numel() for parameter in model.parameters())
    if number > MAX_WEIGHTS:
        largest = max(model.named_parameters(), key=lambda named: named[1].numel())
        failures.append(f"{head.class_name}: {number} weights, {tuple(largest[1].shape)} in {largest[0]}")
        return None
    without_loss = None
    for guess in Maker(model, config, head.task).guesses():
        try:
            batch, has_loss = _with_image_tokens(model, config, guess)
        except Exception as why:
            batch = guess
            failures.append(f"{head.class_name}({', '.join(batch)}): {_words(why)}")
            continue
        found = Made(architecture, head, model, batch, has_loss, failures)
        if has_loss:
            return found
        without_loss = without_loss or found
    return without_loss


def _with_image_tokens(model: nn.Module, config: Any, batch: Batch) -> tuple[Batch, bool]:
    """The batch with as many tokens for its pictures as the model, which counts them, says."""
    try:
        return batch, _trains(copy.deepcopy(model), batch)
    except ValueError as why:
        counted = re.search(r"tokens: 0,? .*features:? (?:torch.Size\(\[)?(\d+)", str(why))
        token = next((v for n in IMAGE_TOKENS if isinstance(v := getattr(config, n, None), int)), None)
        if counted is None or token is None or "input_ids" not in batch:
            raise
        number = int(counted[1]) // BATCH
        first: Exception = why
        for length in (number, number // HIDDEN):
            if not 0 < length < TOKENS:
                continue
            words = batch["input_ids"].clone()
            words[:, 1 : length + 1] = token
            more = {"labels": words.clone()} if "labels" in batch else {}
            if "mm_token_type_ids" in batch:
                more["mm_token_type_ids"] = (words == token).long()
            try:
                filled = {**batch, "input_ids": words, **more}
                return filled, _trains(copy.deepcopy(model), filled)
            except Exception as another:
                first = another
        raise first from None


IMAGE_TOKENS = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")


def _trains(model: nn.Module, batch: Batch) -> bool:
    """Whether its own loss does; raises if none does."""
    torch.manual_seed(SEED)
    output = model(**batch)
    loss = loss_of(output)
    loss.backward()
    if not torch.isfinite(loss):
        raise ValueError(f"the loss is {loss.item()}")
    if all(parameter.grad is None for parameter in model.parameters()):
        raise ValueError("no weight has a gradient")
    return isinstance(getattr(output, "loss", None), torch.Tensor)


def _words(why: BaseException) -> str:
    return f"{type(why).__name__}: {' '.join(str(why).split())}"[:240]
