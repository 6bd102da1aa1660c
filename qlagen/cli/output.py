"""What commands print: data on stdout, progress on stderr, and no progress where nobody watches."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from qlagen.cli.parser import SPECS
from qlagen.errors import QlagenError


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """A status line on a terminal's stderr; the yielded function changes its text. Silent elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(text) as status:
        yield lambda changed: status.update(changed)


def print_json(value: object) -> None:
    """As JSON on stdout."""
    print(json.dumps(value, indent=1))


def print_lines(text: str) -> None:
    """On stdout, with one newline at the end."""
    sys.stdout.write(text.rstrip("\n") + "\n")


def spec_paths(given: list[Path]) -> list[Path]:
    """The spec files that were named, or all of the folder `specs`. Raises E-EMPTY when there are none."""
    found = given or sorted(SPECS.glob("*.toml"))
    if not found:
        hints = ["name spec files, or run in a folder that has them"]
        raise QlagenError("E-EMPTY", f"no spec is given and there is no {SPECS}/*.toml here", hints=hints)
    return found
