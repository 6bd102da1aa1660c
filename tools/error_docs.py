"""Write docs/errors.md from the tables of error codes, `qlagen/<stage>/codes.py`.

From a checkout: python -m tools.error_docs [--check]
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "errors.md"

STAGES = {
    "spec": "Specs: files, expressions and proofs",
    "algebra": "Algebra",
    "program": "Program",
    "schedule": "Schedule files and schedules",
    "emit": "Emit",
    "package": "Package",
    "verify": "Emulator",
    "bench": "Bench",
    "tune": "Tune",
    "cli": "Command line",
}
"""Stages that have a table of codes, in the compiler's order, with the titles of their sections."""

HEAD = """# Error codes

Everything that a user can cause is an error with a code, the place in the file, what was got, what is allowed and,
where there is one, a way out. Codes do not change between releases; texts may.

```
{example}
```

`qlagen` prints errors on stderr. Its exit code is 0 when all is well, 1 when a check failed (a proof, a budget, a stale
file), 2 for bad usage or bad input, 3 for an internal error and 130 when interrupted. Of the codes below only `E-PROOF`
gives 1; all others give 2.

A stage may also raise the codes of stages before it: a schedule file that is not valid TOML is `E-TOML`. A few codes
have a meaning of their own in two stages; each is listed in both. The generated library does not use these codes: see
"Errors" in [library.md](library.md).

This page is written by `python -m tools.error_docs` from the tables in `qlagen/<stage>/codes.py`.
"""

EXAMPLE = ROOT / "tests" / "bad_specs" / "name_close.txt"


def stage_codes(stage: str) -> Mapping[str, str]:
    """The table of one stage."""
    codes: Mapping[str, str] = importlib.import_module(f"qlagen.{stage}.codes").CODES
    return codes


def render() -> str:
    """The page's text."""
    parts = [HEAD.format(example=EXAMPLE.read_text(encoding="utf-8").rstrip("\n"))]
    for stage, title in STAGES.items():
        rows = [f"| `{code}` | {meaning} |" for code, meaning in stage_codes(stage).items()]
        parts.append("\n".join((f"## {title}", "", "| code | meaning |", "|---|---|", *rows, "")))
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; with ``--check`` 1 when the page is stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is stale")
    text = render()
    if parser.parse_args(arguments).check:
        fresh = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        if not fresh:
            print(f"{PAGE.relative_to(ROOT)} is stale: run python -m tools.error_docs", file=sys.stderr)
        return 0 if fresh else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
