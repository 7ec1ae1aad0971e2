"""What a plan was made with, read from package metadata so that nothing heavy is imported."""

from __future__ import annotations

from functools import cache
from importlib import metadata

SHAPING = ("vdnn", "torch")  # whose versions decide which graph a model becomes and what is done with it


@cache
def made_with() -> dict[str, str]:
    """Package -> its version here."""
    return {package: _version(package) for package in SHAPING}


def release(version: str) -> str:
    """Without the build: 2.13.0+cpu and 2.13.0+cu130 trace the same graphs."""
    return version.partition("+")[0]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
