"""`python -m zoo`: run it, print the table, hold it to the known exceptions."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from zoo import exceptions
from zoo.heads import named
from zoo.run import kept_rows, results_dir, run
from zoo.table import as_json, as_markdown
from zoo.ways import WAYS


def main() -> int:
    asked = _arguments()
    folder = asked.results or results_dir()
    names = list(named(asked.only))
    for done, name in enumerate(run(names, asked.mode, folder, asked.jobs), start=1):
        found = ", ".join(f"{row.way} {row.verdict}" for row in kept_rows(folder, name))
        print(f"{done}/{len(names)} {name}: {found}", flush=True)
        if asked.table and done % 10 == 0:
            _write_table(asked.table, names, folder)
    rows = [row for name in names for row in kept_rows(folder, name)]
    about = versions()
    print(as_markdown(rows, about))
    (folder / "zoo.json").write_text(as_json(rows, about))
    if asked.table:
        _write_table(asked.table, names, folder)
    surprises = exceptions.surprises(rows)
    print("\n".join(surprises) or "Nothing that the known exceptions do not say.")
    return 1 if surprises else 0


def versions() -> dict[str, str]:
    import torch
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__, "commit": results_dir().name}


def _write_table(file: Path, names: list[str], folder: Path) -> None:
    rows = [row for name in names for row in kept_rows(folder, name)]
    file.write_text(as_markdown(rows, versions()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="zoo", description=__doc__)
    parser.add_argument("--only", default="", help="architectures, as in llama,bert")
    parser.add_argument("--mode", type=lambda text: tuple(text.split(",")), default=WAYS, help=", ".join(WAYS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--results", type=Path, help="where rows are kept; default: build/zoo/COMMIT")
    parser.add_argument("--table", type=Path, help="a Markdown file for the table, written as it goes")
    asked = parser.parse_args()
    unknown = set(asked.mode) - set(WAYS)
    if unknown:
        parser.error(f"modes are {', '.join(WAYS)}, not {', '.join(sorted(unknown))}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
