"""Which class of the transformers library is trained for an architecture, by the library's own tables of heads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

TASKS = (
    "IMAGE_TEXT_TO_TEXT",
    "SPEECH_SEQ_2_SEQ",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "MASKED_LM",
    "CAUSAL_LM",
    "CTC",
    "IMAGE_CLASSIFICATION",
    "VIDEO_CLASSIFICATION",
    "OBJECT_DETECTION",
    "UNIVERSAL_SEGMENTATION",
    "INSTANCE_SEGMENTATION",
    "SEMANTIC_SEGMENTATION",
    "IMAGE_SEGMENTATION",
    "AUDIO_CLASSIFICATION",
    "SEQUENCE_CLASSIFICATION",
    "QUESTION_ANSWERING",
    "TOKEN_CLASSIFICATION",
    "VISUAL_QUESTION_ANSWERING",
    "DOCUMENT_QUESTION_ANSWERING",
    "TABLE_QUESTION_ANSWERING",
    "MULTIPLE_CHOICE",
    "NEXT_SENTENCE_PREDICTION",
    "MULTIMODAL_LM",
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "ZERO_SHOT_OBJECT_DETECTION",
    "MASKED_IMAGE_MODELING",
    "CAUSAL_IMAGE_MODELING",
    "IMAGE_TO_IMAGE",
    "DEPTH_ESTIMATION",
    "NORMAL_ESTIMATION",
    "POINTMAP_ESTIMATION",
    "POSE_ESTIMATION",
    "IMAGE_MATTING",
    "KEYPOINT_DETECTION",
    "KEYPOINT_MATCHING",
    "MASK_GENERATION",
    "TEXT_RECOGNITION",
    "TABLE_RECOGNITION",
    "RETRIEVAL",
    "RNNT",
    "TDT",
    "AUDIO_FRAME_CLASSIFICATION",
    "AUDIO_XVECTOR",
    "TEXT_TO_SPECTROGRAM",
    "TEXT_TO_WAVEFORM",
    "TIME_SERIES_PREDICTION",
    "TIME_SERIES_CLASSIFICATION",
    "TIME_SERIES_REGRESSION",
    "DECISION",
    "PRETRAINING",
)
"""In the order in which they are tried: what people train most comes first."""


@dataclass(frozen=True, slots=True)
class Head:
    task: str
    class_name: str


@cache
def heads() -> dict[str, tuple[Head, ...]]:
    """By architecture, all of its heads."""
    from transformers.models.auto import modeling_auto

    found: dict[str, list[Head]] = {}
    for task in TASKS:
        table = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {})
        for architecture, names in table.items():
            for name in (names,) if isinstance(names, str) else names:
                found.setdefault(architecture, []).append(Head(task, name))
    trained = [name for name, of in found.items() if any(head.task != "PRETRAINING" for head in of)]
    return {name: tuple(found[name]) for name in sorted(trained)}


def class_of(head: Head) -> Any:
    import transformers

    return getattr(transformers, head.class_name)


def config_class_of(architecture: str) -> type:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[architecture]


def named(architectures: str) -> Iterator[str]:
    """What `--only llama,bert` means. All without it, families mixed, so that the first rows are a spread."""
    wanted = [part.strip() for part in architectures.split(",") if part.strip()]
    unknown = [name for name in wanted if name not in heads()]
    if unknown:
        raise SystemExit(f"no architecture with a training head is called {', '.join(unknown)}")
    yield from wanted or sorted(heads(), key=lambda name: hashlib.sha1(name.encode()).digest())
