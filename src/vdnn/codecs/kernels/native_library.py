"""The C extension: found beside this file, loaded, and asked what it can do.

Enters: nothing. Leaves: the loaded library as `LIBRARY`, and the level of instructions it uses. Importing this raises
an ImportError that says why when the extension was not built, cannot be loaded or is an older build than the Python
beside it. It is a plain shared library without Python's headers, so ctypes calls it and releases the interpreter lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ABI = 1  # VDNN_ABI in csrc/kernels.h
LEVELS = ("generic", "avx2", "avx512")  # enum level in csrc/kernels.h

POINTER, SIZE, INT, UINT64, DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_uint64, ctypes.c_double
SIGNATURES = {
    "copy": (None, POINTER, SIZE, POINTER, INT),
    "pack_mask": (None, POINTER, SIZE, INT, INT, INT, DOUBLE, DOUBLE, POINTER, INT),
    "unpack_mask": (None, POINTER, SIZE, INT, UINT64, UINT64, POINTER, INT),
    "masked_gradient": (None, POINTER, POINTER, SIZE, INT, DOUBLE, DOUBLE, INT, POINTER, INT),
    "pack_window": (SIZE, POINTER, SIZE, POINTER, POINTER, INT),
    "unpack_window": (INT, POINTER, SIZE, POINTER, POINTER, INT),
    "window_backward": (INT, POINTER, POINTER, POINTER, POINTER, INT),
    "reduce": (None, POINTER, SIZE, INT, POINTER, INT),
    "expand": (None, POINTER, SIZE, INT, POINTER, INT),
    "sparse_encode": (SIZE, POINTER, SIZE, INT, INT, POINTER, POINTER, POINTER, SIZE, INT),
    "sparse_decode": (None, POINTER, POINTER, POINTER, SIZE, SIZE, INT, INT, POINTER, INT),
    "csr_encode": (SIZE, POINTER, SIZE, INT, POINTER, POINTER, POINTER, SIZE, INT),
    "csr_decode": (None, POINTER, POINTER, POINTER, SIZE, INT, POINTER, INT),
    "level": (INT,),
    "best_level": (INT,),
    "use_level": (None, INT),
    "has_threads": (INT,),
}
"""Result, then arguments, of each `vdnn_` function; the last INT of a kernel is its number of threads."""


def library_path() -> Path:
    """Where the build put the library; an ImportError when it is not there."""
    folder = Path(__file__).parent
    for suffix in EXTENSION_SUFFIXES:
        if (path := folder / f"_native{suffix}").exists():
            return path
    raise ImportError("the C extension was not built; with a C compiler, `pip install -e .` builds it")


def load(path: Path) -> ctypes.CDLL:
    """The library with its signatures; an ImportError when the system refuses it or its ABI is another one."""
    try:
        library = ctypes.CDLL(str(path))
        found = library.vdnn_abi()
    except (OSError, AttributeError) as problem:
        raise ImportError(f"the C extension does not load: {problem}") from problem
    if found != ABI:
        raise ImportError(f"the C extension is of another version ({found}, not {ABI}); `pip install -e .` rebuilds it")
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(library, f"vdnn_{name}")
        function.restype, function.argtypes = result, arguments
    return library


LIBRARY = load(library_path())


def level() -> str:
    """The instructions in use: "generic", "avx2" or "avx512"."""
    return LEVELS[LIBRARY.vdnn_level()]


def levels() -> tuple[str, ...]:
    """The levels this CPU has, the best one last."""
    return LEVELS[: LIBRARY.vdnn_best_level() + 1]


def has_threads() -> bool:
    """Whether the build found OpenMP."""
    return bool(LIBRARY.vdnn_has_threads())


@contextmanager
def using_level(name: str) -> Iterator[None]:
    """For tests and benchmarks: all kernels of this process use that level meanwhile."""
    if name not in levels():
        raise ValueError(f"this CPU has the levels {', '.join(levels())}, not {name!r}")
    before = LIBRARY.vdnn_level()
    LIBRARY.vdnn_use_level(LEVELS.index(name))
    try:
        yield
    finally:
        LIBRARY.vdnn_use_level(before)
