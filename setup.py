"""Builds the C kernels of `vdnn.codecs`; everything else about the package is in pyproject.toml.

The one idea: an install never fails for want of a compiler. Without one the extension is left out and the numpy kernels
are used; with one that has no OpenMP the kernels are built for a single thread. Which instructions a CPU has is found
out when the library is loaded, so nothing here is tuned to the machine that builds.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

SOURCES = "src/vdnn/codecs/kernels/csrc"
FLAGS = [
    "-std=gnu11",
    "-O3",
    "-ffp-contract=off",  # a * b + c rounds twice, as in numpy and PyTorch, on every CPU
    "-fno-strict-aliasing",  # the same bytes are floats to one loop and integers to the next
    "-fvisibility=hidden",
    "-Werror=switch",  # a new member of an enum needs its case
]
OPENMP = ["-fopenmp"]


def sources(suffix: str) -> list[str]:
    """Paths relative to this file, which is what setuptools wants."""
    root = Path(__file__).parent
    return sorted(str(path.relative_to(root)) for path in (root / SOURCES).glob(f"*{suffix}"))


class BuildKernels(build_ext):
    """Tries with OpenMP, then without; when that fails too, `optional` lets the install go on."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except (CompileError, LinkError):
            ext.extra_compile_args = [flag for flag in ext.extra_compile_args if flag not in OPENMP]
            ext.extra_link_args = [flag for flag in ext.extra_link_args if flag not in OPENMP]
            super().build_extension(ext)


setup(
    ext_modules=[
        Extension(
            "vdnn.codecs.kernels._native",
            sources=sources(".c"),
            depends=sources(".h"),
            extra_compile_args=FLAGS + OPENMP,
            extra_link_args=OPENMP,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels},
)
