"""`python -m vdnn` is the command `vdnn`."""

from __future__ import annotations

import sys

from vdnn.cli import main

if __name__ == "__main__":
    sys.exit(main())
