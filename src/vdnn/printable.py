"""Text from outside, as it may be shown: names of modules and tensors, words in files, what others' errors say.

Enters: any string. Leaves: the same where every character of it is one that people see, else with the others written
out, as in `\\x1b` and `\\u202e`. The one idea: escape at the door. Names enter vdnn in `ir.py` and through the readers
of `reading/`, and leave it in errors too; whatever lies between shows them as they are. Markup is no concern here:
consoles of vdnn are made with it switched off (`report/text.py`).
"""

from __future__ import annotations


def printable(text: str) -> str:
    """Without control characters, bidirectional and other invisible marks, lone surrogates and line ends."""
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """The same, line by line: for whole messages, whose lines are their own."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode("ascii")
