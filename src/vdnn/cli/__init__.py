"""The command line, one file per subcommand: a thin coat over the functions a Python user calls.

Enters: argv. Leaves: text for people or JSON for programs, and an exit code. The one idea: a subcommand is a function
from options to an `Answer`; `main` alone prints, so that text, JSON and errors behave the same everywhere.
"""

from __future__ import annotations

from vdnn.cli.app import main

__all__ = ["main"]
