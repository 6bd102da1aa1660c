"""``python -m qlagen.tune.generate SPEC TARGET SCHEDULES OUTPUT``: one library's sources, in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from qlagen.errors import QlagenError
from qlagen.package.build import build_library
from qlagen.spec.load import load_spec


def main() -> int:
    """0, or 2 with the error on stderr."""
    spec, target, schedules, output = sys.argv[1:]
    try:
        build_library([load_spec(spec)], Path(output), target=target, schedules=Path(schedules))
    except QlagenError as fault:
        print(fault.render(), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
