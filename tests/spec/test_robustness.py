"""Whatever the text, the spec stage answers with a spec or with a QlagenError."""

from __future__ import annotations

from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from qlagen.errors import QlagenError
from qlagen.spec import parse_spec, show_spec
from qlagen.spec.codes import CODES
from qlagen.spec.model import OpSpec

ROOT = Path(__file__).resolve().parents[2]
SPECS = [path.read_text("utf-8") for path in sorted((ROOT / "specs").glob("*.toml"))]
WORDS = [
    *("Q", "K", "V", "S", "A", "W", "U", "G", "beta", "scale", "Vn", "O", "y"),
    "2",
    "+",
    "-",
    "*",
    "@",
    "(",
    ")",
    ",",
    "^T",
    "tril(",
    "stril(",
    "decay(",
    "inv_unit_lower(",
    "$",
]


def outcome(text: str) -> OpSpec | QlagenError:
    try:
        spec = parse_spec(text, "x.toml")
    except QlagenError as error:
        assert error.code in CODES
        assert f"error[{error.code}]: " in error.render()
        assert error.span is not None
        lines = text.replace("\r\n", "\n").split("\n")
        assert 1 <= error.span.line <= len(lines)
        assert error.span.text in ("", lines[error.span.line - 1])
        return error
    show_spec(spec)
    return spec


@settings(max_examples=150, deadline=None)
@given(st.text())
@example("\ufeff")
@example("[spec]\r")
@example("spec = 1")
@example("[[spec]]")
@example("[inputs]\n'' = 3")
def test_any_text(text: str) -> None:
    assert isinstance(outcome(text), QlagenError)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SPECS), st.data())
def test_a_damaged_spec(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 12))
        patch = data.draw(
            st.one_of(st.text(max_size=6), st.text("[]{}=\"'.,#\n\\", max_size=4), st.sampled_from(WORDS))
        )
        text = text[:start] + patch + text[start + length :]
    outcome(text)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=12))
def test_any_words_as_a_stage(words: list[str]) -> None:
    text = SPECS[1].replace('Vn = "U - W @ S"', f'Vn = """U - W @ S + {" ".join(words)}"""')
    assert text != SPECS[1]
    outcome(text)


VALUES = st.recursive(
    st.sampled_from(
        ["1", "-1", "2.5", "true", "''", "'x'", "'K'", "'<=0'", "1979-05-27", "nan", "0x10", "999999999999999999"]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(inner, max_size=3).map(
            lambda items: "{" + ", ".join(f"k{i} = {v}" for i, v in enumerate(items)) + "}"
        ),
    ),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(SPECS), st.data(), VALUES)
def test_any_value_for_any_key(text: str, data: st.DataObject, value: str) -> None:
    lines = text.split("\n")
    keys = [index for index, line in enumerate(lines) if "=" in line and not line.startswith(("#", " "))]
    index = data.draw(st.sampled_from(keys))
    lines[index] = f"{lines[index].split('=')[0]}= {value}"
    outcome("\n".join(lines))
