"""Places of keys, values and characters in TOML text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlagen.errors import QlagenError
from qlagen.spec.document import Document, read_document

TEXT = '''# comment = "no"
title = "a # b"   # trailing
[one]
"quoted.key" = 'x'
dotted . name = 3
list = [ "p", [1, 2], # comment ]
  { x = "deep", "y" = { z = true } },
]
date = 1979-05-27 07:32:00
[one.two]
multi = """
first
  second\\
     third"""
[[many]]
a = 1
[[many]]
a = 2.5
'''


def marked(document: Document, path: tuple[str | int, ...], what: str = "value") -> str:
    span = document.value_span(path) if what == "value" else document.key_span(path)
    return span.text[span.column - 1 : span.column - 1 + span.length]


def test_places() -> None:
    document = read_document(TEXT, "x.toml")
    assert marked(document, ("title",), "key") == "title"
    assert marked(document, ("title",)) == '"a # b"'
    assert marked(document, ("one",)) == "[one]"
    assert marked(document, ("one", "quoted.key"), "key") == '"quoted.key"'
    assert marked(document, ("one", "dotted", "name"), "key") == "dotted . name"
    assert marked(document, ("one", "dotted", "name")) == "3"
    assert marked(document, ("one", "list", 1, 1)) == "2"
    assert marked(document, ("one", "list", 2, "x")) == '"deep"'
    assert marked(document, ("one", "list", 2, "y", "z"), "key") == "z"
    assert marked(document, ("one", "list", 2, "y", "z")) == "true"
    assert marked(document, ("one", "date")) == "1979-05-27 07:32:00"
    assert marked(document, ("many", 1, "a")) == "2.5"
    assert document.value_span(("many", 1, "a")).line == 18


def test_characters_of_a_multi_line_string() -> None:
    document = read_document(TEXT, "x.toml")
    source = document.source(("one", "two", "multi"), "first\n  secondthird")
    for word, line, column in (("first", 12, 1), ("second", 13, 3), ("third", 14, 6)):
        start = source.text.index(word)
        span = source.span(start, start + len(word))
        assert (span.line, span.column) == (line, column)
        assert span.length == len(word)


def test_a_path_that_is_not_there_points_at_the_start() -> None:
    span = read_document(TEXT, "x.toml").key_span(("nowhere",))
    assert (span.line, span.column) == (1, 1)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [("a = 1\nb = ]", 2, 5), ("a = [1,", 1, 8), ("a = 1\n\n\na = 2\n", 4, 6), ("é = 1", 1, 1), ('a = "\u0001"', 1, 6)],
)
def test_syntax_errors_have_a_place(text: str, line: int, column: int) -> None:
    with pytest.raises(QlagenError) as caught:
        read_document(text, "x.toml")
    assert caught.value.code == "E-TOML"
    assert caught.value.span is not None
    assert (caught.value.span.line, caught.value.span.column) == (line, column)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000,
        "a = " + "[" * 40 + "]" * 40,
        "a = " + "{a=" * 40 + "1" + "}" * 40,
        ".".join("a" * 50) + "=1",
    ],
)
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(QlagenError) as caught:
        read_document(text, "x.toml")
    assert caught.value.code == "E-DEPTH"


def test_a_huge_file_and_a_huge_integer_are_refused() -> None:
    with pytest.raises(QlagenError) as caught:
        read_document("#" * 262_145, "x.toml")
    assert caught.value.code == "E-SIZE"
    with pytest.raises(QlagenError) as caught:
        read_document("a = " + "9" * 5000, "x.toml")
    assert caught.value.code == "E-TOML"


SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def spelling(character: str, style: int) -> str:
    """One of the ways to write a character in a basic string."""
    if style == 1:
        return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"
    if style == 2:
        return f"\\U{ord(character):08X}"
    if character in SHORT:
        return SHORT[character]
    return character if character.isprintable() else spelling(character, 1)


@given(st.lists(st.tuples(st.characters(exclude_categories=["Cs"]), st.integers(0, 2)), max_size=20), st.booleans())
def test_every_character_of_a_basic_string_is_located(parts: list[tuple[str, int]], long: bool) -> None:
    quote = '"""' if long else '"'
    text = f"[t]\n  key = {quote}"
    starts = []
    for character, style in parts:
        starts.append(len(text))
        text += spelling(character, style)
    text += quote + " # end\nafter = 1\n"
    document = read_document(text, "x.toml")
    place = document.places[("t", "key")]
    assert place.characters == tuple(starts)
    assert document.data["t"] == {"key": "".join(character for character, _ in parts), "after": 1}
    assert document.value_span(("t", "after")).text == "after = 1"


@given(st.text(st.sampled_from("a'\" \n"), max_size=12))
def test_quotes_inside_long_literal_strings(body: str) -> None:
    text = f"k = '''\n{body}'''\n"
    try:
        document = read_document(text, "x.toml")
    except QlagenError as error:
        assert error.code == "E-TOML"
        return
    value = document.data["k"]
    assert isinstance(value, str)
    place = document.places[("k",)]
    assert [text[offset] for offset in place.characters] == list(value)
