"""``python -m qlagen``."""

from __future__ import annotations

import sys

from qlagen.cli import main

if __name__ == "__main__":
    sys.exit(main())
