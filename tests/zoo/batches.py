"""A batch for a model of the transformers library, by what its `forward` calls its arguments.

Enters: a model, its configuration and its task. Leaves: keyword arguments of `forward`, labels among them, drawn from a
generator of their own. Several guesses are made, the most telling first; the one that trains plain is taken.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from zoo.shrink import IMAGE

BATCH, TOKENS, LABELS = 2, 64, 8
SAMPLES, FRAMES = 4000, 96
FIRST_WORD, END_OF_WORDS = 4, 90
"""Ids below mean padding and ends, ids above are those of images and sounds."""

Batch = dict[str, Any]


class Maker:
    def __init__(self, model: nn.Module, config: Any, task: str) -> None:
        self.config, self.task = config, task
        parameters = inspect.signature(model.forward).parameters
        self.asked = set(parameters)
        self.required = {
            name
            for name, parameter in parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        }
        self.generator = torch.Generator().manual_seed(0)
        self.image = image_size_of(config)

    def words(self, length: int = TOKENS) -> Tensor:
        return torch.randint(FIRST_WORD, END_OF_WORDS, (BATCH, length), generator=self.generator)

    def noise(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def pictures(self) -> Tensor:
        channels = _number(self.config, "num_channels", 3)
        frames = _number(self.config, "num_frames", 0)
        if self.task == "VIDEO_CLASSIFICATION":
            return self.noise(BATCH, frames or 8, channels, *self.image)
        return self.noise(BATCH, channels, *self.image)

    def guesses(self) -> Iterator[Batch]:
        """Batches to try, with labels, then without."""
        for inputs in self._inputs():
            for labels in self._labels(inputs):
                if "attention_mask" in self.asked and "input_ids" in inputs:  # as every tokenizer makes one
                    mask = torch.ones(inputs["input_ids"].shape, dtype=torch.long)
                    yield {**inputs, "attention_mask": mask, **labels}
                yield {**inputs, **labels}

    def _inputs(self) -> Iterator[Batch]:
        asked = self.asked
        sounds = self._sounds()
        if "image_grid_thw" in asked and "input_ids" in asked:
            yield {"input_ids": self.words(), **self._patches()}
        if "pixel_values" in asked and "input_ids" in asked:
            yield {
                "pixel_values": self.pictures(),
                "input_ids": self.words(),
                **self._more("pixel_values", "input_ids"),
            }
        if "pixel_values" in self.required or ("pixel_values" in asked and "input_ids" not in asked):
            yield {"pixel_values": self.pictures(), **self._more("pixel_values")}
        for name, sound in sounds.items():
            yield {name: sound, **self._more(name)}
            if "input_ids" in asked:
                yield {name: sound, "input_ids": self.words(), **self._more(name, "input_ids")}
        if "input_ids" in asked:
            yield {"input_ids": self.words(), **self._more("input_ids")}
            if self.task == "MULTIPLE_CHOICE":
                yield {"input_ids": self.words().unsqueeze(1).expand(-1, 2, -1).contiguous()}
        if "past_values" in asked:
            yield self._series()

    def _patches(self) -> Batch:
        """Pictures as rows of patches: four by four of each."""
        vision = self.config.vision_config
        patch, frames = vision.patch_size, getattr(vision, "temporal_patch_size", 1)
        channels = getattr(vision, "in_channels", None) or getattr(vision, "num_channels", 3)
        grid = torch.tensor([[1, 4, 4]] * BATCH)
        more: Batch = (
            {"mm_token_type_ids": torch.zeros(BATCH, TOKENS, dtype=torch.long)}
            if "mm_token_type_ids" in self.asked
            else {}
        )
        return {
            "pixel_values": self.noise(16 * BATCH, channels * frames * patch * patch),
            "image_grid_thw": grid,
            **more,
        }

    def _sounds(self) -> Batch:
        found = {}
        if "input_values" in self.asked:
            found["input_values"] = self.noise(BATCH, SAMPLES)
        if "input_features" in self.asked:
            mels = _number(self.config, "num_mel_bins", 0) or _number(self.config, "input_feat_per_channel", 80)
            positions = _number(self.config, "max_source_positions", 0)
            is_whisper = self.config.model_type == "whisper"
            found["input_features"] = (
                self.noise(BATCH, mels, 2 * positions) if is_whisper else self.noise(BATCH, FRAMES, mels)
            )
        return found

    def _more(self, *there: str) -> Batch:
        """What else is required."""
        more: Batch = {}
        if "bbox" in self.asked:
            corners = torch.randint(0, 50, (BATCH, TOKENS, 2), generator=self.generator)
            more["bbox"] = torch.cat([corners, corners + 40], -1)
        if "return_loss" in self.asked and self.task == "ZERO_SHOT_IMAGE_CLASSIFICATION":
            more["return_loss"] = True
        if "decoder_input_ids" in self.required:
            more["decoder_input_ids"] = self.words(LABELS)
        if "pixel_mask" in self.required:
            more["pixel_mask"] = torch.ones(BATCH, *self.image, dtype=torch.long)
        return more

    def _series(self) -> Batch:
        length = _number(self.config, "context_length", 32)
        lags = max(getattr(self.config, "lags_sequence", None) or [0])
        channels = _number(self.config, "num_input_channels", 1)
        ahead = _number(self.config, "prediction_length", 8)
        shape = (
            (BATCH, length + lags)
            if channels == 1 and "past_time_features" in self.asked
            else (BATCH, length + lags, channels)
        )
        future = (BATCH, ahead, *shape[2:])
        batch: Batch = {"past_values": self.noise(*shape)}
        if "past_time_features" in self.asked:
            features = _number(self.config, "num_time_features", 0)
            batch["past_time_features"] = self.noise(BATCH, length + lags, features)
            batch["future_time_features"] = self.noise(BATCH, ahead, features)
        if "past_observed_mask" in self.asked:
            batch["past_observed_mask"] = torch.ones(*shape)
        if "future_values" in self.asked:
            batch["future_values"] = self.noise(*future)
        return batch

    def _labels(self, inputs: Batch) -> Iterator[Batch]:
        asked = self.asked
        if {"start_positions", "end_positions"} <= asked:
            yield {"start_positions": torch.tensor([1, 5]), "end_positions": torch.tensor([3, 9])}
        if "mask_labels" in asked:
            masks = [(torch.rand(2, *self.image, generator=self.generator) > 0.5).float() for _ in range(BATCH)]
            yield {"mask_labels": masks, "class_labels": [torch.tensor([0, 1]) for _ in range(BATCH)]}
        if "bool_masked_pos" in asked:
            yield from self._patch_masks()
        if "labels" in asked:
            yield from ({"labels": labels} for labels in self._label_tensors(inputs))
        if "next_sentence_label" in asked and "labels" in asked:
            yield {"labels": inputs["input_ids"], "next_sentence_label": torch.tensor([0, 1])}
        yield {}

    def _label_tensors(self, inputs: Batch) -> Iterator[Any]:
        task, classes = self.task, torch.tensor([1, 0])
        if task in ("OBJECT_DETECTION", "INSTANCE_SEGMENTATION", "IMAGE_SEGMENTATION", "ZERO_SHOT_OBJECT_DETECTION"):
            boxes = torch.tensor([[0.5, 0.5, 0.4, 0.4], [0.3, 0.4, 0.2, 0.3]])
            masks = (torch.rand(2, *self.image, generator=self.generator) > 0.5).float()
            found = {"class_labels": classes, "boxes": boxes, "masks": masks}
            yield [{name: part.clone() for name, part in found.items()} for _ in range(BATCH)]
        if task == "SEMANTIC_SEGMENTATION":
            yield torch.randint(0, 2, (BATCH, *self.image), generator=self.generator)
        if task == "TOKEN_CLASSIFICATION":
            yield torch.randint(0, 2, (BATCH, TOKENS), generator=self.generator)
        if task == "AUDIO_FRAME_CLASSIFICATION":
            yield torch.randint(0, 2, (BATCH, 12, 2), generator=self.generator).float()
        if task in ("CTC", "SPEECH_SEQ_2_SEQ", "RNNT", "TDT", "TEXT_RECOGNITION") or "input_ids" not in inputs:
            yield torch.randint(FIRST_WORD, 30, (BATCH, LABELS), generator=self.generator)
        if "CLASSIFICATION" in task or task in ("AUDIO_XVECTOR", "NEXT_SENTENCE_PREDICTION", "MULTIPLE_CHOICE"):
            yield classes
        if "QUESTION_ANSWERING" in task:
            yield torch.rand(BATCH, _number(self.config, "num_labels", 2), generator=self.generator)
        if "input_ids" in inputs:
            yield inputs["input_ids"].clone()

    def _patch_masks(self) -> Iterator[Batch]:
        patch = _number(self.config, "patch_size", 8)
        number = (self.image[0] // patch) * (self.image[1] // patch)
        mask = torch.zeros(BATCH, number, dtype=torch.bool)
        mask[:, ::2] = True
        yield {"bool_masked_pos": mask}


def _number(config: Any, name: str, default: int) -> int:
    """A field of the configuration, or of the one for pictures or sound in it."""
    for part in (
        config,
        *(getattr(config, key, None) for key in ("vision_config", "audio_config", "backbone_config", "encoder")),
    ):
        value = getattr(part, name, None)
        if isinstance(value, list | tuple):
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return default


def image_size_of(config: Any) -> tuple[int, int]:
    for part in (config, *(getattr(config, key, None) for key in ("vision_config", "backbone_config", "encoder"))):
        size = getattr(part, "image_size", None)
        if isinstance(size, list | tuple) and len(size) == 2:
            return int(size[0]), int(size[1])
        if isinstance(size, int):
            return size, size
    return 2 * IMAGE, 2 * IMAGE


def loss_of(output: Any) -> Tensor:
    """What the model calls its loss; where it has none, the mean square of all that it returns."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss if loss.ndim == 0 else loss.sum()
    parts = [
        part.float().square().mean() for part in _tensors(output) if part.requires_grad and part.is_floating_point()
    ]
    if not parts:
        raise ValueError("the model returned nothing that depends on its weights")
    return torch.stack(parts).sum()


def _tensors(output: Any) -> Iterator[Tensor]:
    from torch.utils import _pytree

    for leaf in _pytree.tree_leaves(dict(output) if hasattr(output, "keys") else output):
        if isinstance(leaf, Tensor):
            yield leaf
        elif hasattr(leaf, "keys"):
            yield from _tensors(leaf)
