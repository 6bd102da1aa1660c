"""Edits of a schedule file: the changed values change, and not a byte beside them."""

from __future__ import annotations

import difflib

import pytest

from qlagen.errors import QlagenError
from qlagen.schedule.options import parse_options
from qlagen.tune.edit import Value, comment_lines, edit_entry, format_value
from tests.tune.entries import TEXT

COMMENT = comment_lines("NVIDIA H200, 2026-11-30, before: stages = 3. Milliseconds of a call:", ["16:64/4x8192 2 -> 1"])


def changed_lines(before: str, after: str) -> tuple[list[str], list[str]]:
    """Lines that went and lines that came."""
    lines = list(difflib.ndiff(before.splitlines(keepends=True), after.splitlines(keepends=True)))
    return [x[2:] for x in lines if x[0] == "-"], [x[2:] for x in lines if x[0] == "+"]


CHANGES: list[tuple[str, int, dict[str, Value], list[str], list[str]]] = [
    ("carried", 0, {"stages": 2}, ["stages = 3\n"], ["stages = 2\n"]),
    ("carried", 3, {"ahead": 3}, ["ahead = 1\n"], ["ahead = 3\n"]),
    ("carried", 2, {"delays": (2, 0)}, [], ["delays = [2, 0]\n"]),
    (
        "carried",
        0,
        {"registers": (("state", 216), ("auxiliary", 56), ("movers", 24)), "ctas_per_sm": 1},
        ["registers = { state = 208, auxiliary = 72, movers = 24 }\n"],
        ["registers = { state = 216, auxiliary = 56, movers = 24 }\n", "ctas_per_sm = 1\n"],
    ),
    ("chunk_parallel", 2, {"mover_warps": 3}, ["mover_warps = 4\n"], ["mover_warps = 3\n"]),
]


@pytest.mark.parametrize(("part", "index", "changes", "gone", "come"), CHANGES)
def test_only_the_changed_lines_change(
    part: str, index: int, changes: dict[str, Value], gone: list[str], come: list[str]
) -> None:
    edited = edit_entry(TEXT, "f", part, index, changes)
    assert changed_lines(TEXT, edited) == (gone, come)
    before, after = (getattr(parse_options(text, "f"), part) for text in (TEXT, edited))
    assert [i for i, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]] == [index] * (
        changes.keys() != {"ctas_per_sm"}
    )


def test_the_comment_stands_below_the_header_and_is_replaced() -> None:
    once = edit_entry(TEXT, "f", "carried", 0, {"stages": 2}, COMMENT)
    assert changed_lines(TEXT, once) == (["stages = 3\n"], [*(f"{line}\n" for line in COMMENT), "stages = 2\n"])
    header = next(line for line in TEXT.splitlines() if line.startswith("[[carried]]"))
    assert f"{header}\n{COMMENT[0]}\n" in once
    again = edit_entry(once, "f", "carried", 0, {"stages": 3}, comment_lines("x.", ["y"]))
    assert changed_lines(TEXT, again) == ([], ["# Tuned on x. y\n"])


def test_comments_are_wrapped_and_found_again() -> None:
    lines = comment_lines("NVIDIA H200, 2026-11-30:", [f"16:64/{n}x8192 1.234 -> 1.201" for n in range(1, 9)])
    assert len(lines) > 1
    assert all(len(line) <= 120 for line in lines)
    assert lines[0].startswith("# Tuned on NVIDIA H200, 2026-11-30: 16:64/1x8192 1.234 -> 1.201,")
    assert all(line.startswith("#   16:64/") for line in lines[1:])
    edited = edit_entry(TEXT, "f", "carried", 1, {}, lines)
    assert edit_entry(edited, "f", "carried", 1, {}, lines) == edited


def test_a_comment_beside_a_value_stays() -> None:
    text = TEXT.replace("stages = 3\n", "stages = 3   # three of them\n", 1)
    assert "stages = 2   # three of them\n" in edit_entry(text, "f", "carried", 0, {"stages": 2})


def test_windows_lines_stay() -> None:
    text = TEXT.replace("\n", "\r\n")
    edited = edit_entry(text, "f", "carried", 0, {"stages": 2, "delays": (0, 0)}, COMMENT)
    assert edited == edit_entry(TEXT, "f", "carried", 0, {"stages": 2, "delays": (0, 0)}, COMMENT).replace("\n", "\r\n")
    with pytest.raises(QlagenError, match="lines that end in different ways"):
        edit_entry(text.replace("\r\n", "\n", 1), "f", "carried", 0, {"stages": 2})


def test_no_newline_at_the_end() -> None:
    text = TEXT.rstrip("\n")
    edited = edit_entry(text, "f", "chunk_parallel", 2, {"registers": (("tile", 96), ("movers", 24))})
    assert edited == text + "\nregisters = { tile = 96, movers = 24 }\n"


def test_an_entry_that_cannot_be_edited() -> None:
    """Registers in a table of their own stay as they are."""
    table = "\n[carried.registers]\nstate = 208\nauxiliary = 72\nmovers = 24\n"
    text = TEXT.replace("registers = { state = 208, auxiliary = 72, movers = 24 }\n", table, 1)
    assert parse_options(text, "f") == parse_options(TEXT, "f")
    edited = edit_entry(text, "f", "carried", 0, {"stages": 2, "delays": (0, 0)})
    assert changed_lines(text, edited) == (["stages = 3\n"], ["stages = 2\n", "delays = [0, 0]\n"])
    with pytest.raises(QlagenError) as caught:
        edit_entry(text, "f", "carried", 0, {"registers": (("state", 200), ("auxiliary", 72), ("movers", 24))})
    assert caught.value.render().splitlines()[0] == (
        "f:19:1: error[E-TUNE-EDIT]: entry 1 of [[carried]] cannot be edited in place"
    )


def test_values_as_toml() -> None:
    values: list[Value] = [3, True, (), (2, 0), (("a", 1),)]
    assert [format_value(value) for value in values] == ["3", "true", "[]", "[2, 0]", "{ a = 1 }"]
