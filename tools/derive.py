"""Rewrite the derivations that the repository keeps: ``specs/derived/<operator>.json``.

From a checkout: python -m tools.derive [--check] [SPEC ...]

Without specs, all of ``specs/*.toml``. With ``--check`` nothing is derived or written: files that were made from other
sources, or are missing, are listed, and the exit code is 1 if there are any.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from qlagen.algebra.cache import make_record, read_record, record_path
from qlagen.spec.load import load_spec

SPECS = Path("specs")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.derive", description="Rewrite the stored derivations.")
    parser.add_argument("--check", action="store_true", help="only list what is stale or missing")
    parser.add_argument("specs", nargs="*", type=Path, metavar="SPEC")
    options = parser.parse_args(arguments)
    stale = [s for s in map(load_spec, options.specs or sorted(SPECS.glob("*.toml"))) if read_record(s) is None]
    for spec in stale:
        path = record_path(spec)
        print(f"{path}: stale or missing" if options.check else f"{path}: deriving")
        if not options.check:
            text = make_record(spec)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
