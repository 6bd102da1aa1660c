"""Bring the quoted output in docs/*.md up to date.

A block of output stands below a comment that says where it comes from, and optionally which lines of it to quote:

    <!-- qlagen show specs/x.toml --stage program -->
    <!-- qlagen show specs/x.toml --stage program: program forward .. q [C, K] = ; k_S .. -->

Each range begins with the next line that starts with its first text and ends with the next one that starts with its
last text, spaces aside; without a last text it ends before an empty line, and a range of one text is one line. What is
left out between two ranges is shown as ``...``, indentation that all lines share is removed, and lines too long for the
page are cut. A comment may have several lines.

From a checkout: python -m tools.doc_excerpts [--check]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from qlagen.cli.main import main as qlagen

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WIDTH = 116
_BLOCK = re.compile(
    r"(?P<head><!-- qlagen (?P<command>[^:\n]+?)(?::\s(?P<ranges>.+?))? -->\n```[a-z]*\n)"
    r"(?P<text>.*?)(?P<tail>```\n)",
    re.DOTALL,
)


class ExcerptError(Exception):
    """A block whose command fails or whose lines are not there."""


@functools.cache
def output(command: str) -> tuple[str, ...]:
    """Lines that `qlagen` prints for the arguments, run at the root of the checkout."""
    said = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(said):
        status = qlagen(shlex.split(command))
    if status:
        raise ExcerptError(f"qlagen {command}: exit code {status}")
    return tuple(said.getvalue().splitlines())


def quote(command: str, ranges: str | None) -> str:
    """The lines to quote."""
    lines = output(command)
    if ranges is None:
        return "".join(f"{_cut(line)}\n" for line in lines)
    quoted: list[str] = []
    at = 0
    for part in " ".join(ranges.split()).split(" ; "):
        first, dots, last = f"{part} ".partition(" .. ")
        start = _find(lines, first.strip(), at, command)
        end = start
        if dots:
            end = _find(lines, last.strip(), start, command) if last.strip() else _block_end(lines, start)
        if quoted and start > at:
            quoted.append(min(_indent(quoted[-1]), _indent(lines[start])) + "...")
        quoted += lines[start : end + 1]
        at = end + 1
    return "".join(f"{_cut(line)}\n" for line in textwrap.dedent("\n".join(quoted)).split("\n"))


def _find(lines: Sequence[str], text: str, start: int, command: str) -> int:
    for index in range(start, len(lines)):
        if " ".join(lines[index].split()).startswith(text):
            return index
    raise ExcerptError(f"qlagen {command}: no line from {start + 1} on starts with {text!r}")


def _block_end(lines: Sequence[str], start: int) -> int:
    return next((index for index in range(start, len(lines)) if not lines[index].strip()), len(lines)) - 1


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 4].rstrip()} ..."


def refresh(text: str) -> str:
    """The page with every block of output as it is now."""
    return _BLOCK.sub(lambda m: m["head"] + quote(m["command"], m["ranges"]) + m["tail"], text)


def stale_pages() -> Iterator[tuple[Path, str]]:
    """Pages that quote something else than what is printed now, with the text they should have."""
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        fresh = refresh(text)
        if fresh != text:
            yield page, fresh


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; with ``--check`` 1 when a page is stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is stale")
    check = parser.parse_args(arguments).check
    os.environ.setdefault("NO_COLOR", "1")
    stale = list(stale_pages())
    for page, fresh in stale:
        print(f"{'stale' if check else 'written'}: {page.relative_to(ROOT)}", file=sys.stderr)
        if not check:
            page.write_text(fresh, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
