"""What goes wrong as one clear text and an exit code.

Exit codes: 1 something unexpected or a comparison that failed, 2 a mistake in what was asked, 130 interrupted.
"""

from __future__ import annotations

import typer

from vdnn.errors import VdnnError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

# The base of typer's usage errors, found through one of them: newer typers carry their own copy of click.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def explain_failure(error: BaseException) -> tuple[str, int]:
    """A ValueError is a mistake in what was asked, like everything vdnn raises on purpose; the rest is unexpected."""
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return "interrupted", INTERRUPTED
    if isinstance(error, UsageError):
        return _usage(error), MISUSED
    if isinstance(error, (VdnnError, ValueError)):
        return str(error), MISUSED
    summary = str(error).strip().partition("\n")[0]
    return f"unexpected {type(error).__name__}: {summary} (run again with --debug for the traceback)", FAILED


def _usage(error: Exception) -> str:
    """The parser's own words, and where to read more."""
    words = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "vdnn"
    return f"{words.rstrip('.')}. See '{command} --help'."
