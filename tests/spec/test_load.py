"""What a loaded spec contains, and what the format accepts beyond the specs in the repository."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from qlagen.errors import QlagenError
from qlagen.spec import load_spec, load_specs, parse_spec, show_spec
from qlagen.spec.model import Binary, Name

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted((ROOT / "specs").glob("*.toml"))
GATED = ROOT / "specs" / "gated_delta_rule.toml"


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_text_form_is_pinned(path: Path, golden: Callable[[Path, str], None]) -> None:
    spec = load_spec(path)
    assert spec.name == path.stem
    golden(ROOT / "tests" / "spec" / "golden" / f"{path.stem}.txt", show_spec(spec))


def test_gated_delta_rule() -> None:
    spec = load_spec(GATED)
    text = GATED.read_text("utf-8")
    assert spec.digest == hashlib.sha256(text.encode()).hexdigest()
    assert spec.dims == (("K", 128), ("V", 128))
    assert (spec.state, spec.next_state, spec.chunk) == ("S", "S_next", (64,))
    assert [line.name for line in spec.recurrence] == ["decayed", "update", "S_next", "o"]
    assert [stage.name for stage in spec.stages] == ["A", "W", "U", "Vn", "O", "S1"]
    assert (spec.output, spec.state_output) == ("O", "S1")
    assert spec.gradients == ("q", "k", "v", "g", "beta", "S")
    assert spec.references == ("Yang, Kautz, Hatamizadeh: Gated Delta Networks, 2024, arXiv 2412.06464",)
    gate = spec.input("g")
    assert (gate.role, gate.chunk_symbol, gate.token_symbol, gate.range) == ("log_gate", "G", "a", (None, 0.0))
    key = spec.input("k")
    assert (key.dims, key.heads, key.dtype, key.norm) == (("K",), "key", "data", 1.0)
    assert spec.input("beta").range == (0.0, 2.0)
    assert spec.input("beta").chunk_symbol == "beta"
    assert (spec.input("scale").heads, spec.input("scale").default) == ("none", "K^-1/2")
    assert spec.input("v").span.line == text[: text.index("\nv ")].count("\n") + 2


def test_spans_point_into_the_file() -> None:
    spec = load_spec(GATED)
    lines = GATED.read_text("utf-8").split("\n")
    expression = spec.stage("Vn").expression
    assert isinstance(expression, Binary)
    assert isinstance(expression.right, Binary)
    state = expression.right.right
    assert isinstance(state, Name)
    for node, text in ((expression, "U - W @ S"), (expression.right, "W @ S"), (state, "S")):
        span = node.span
        assert lines[span.line - 1][span.column - 1 : span.column - 1 + span.length] == text
    key = spec.stage("Vn").span
    assert lines[key.line - 1][key.column - 1 : key.column - 1 + key.length] == "Vn"


def test_load_specs_keeps_the_order_given() -> None:
    assert [spec.name for spec in load_specs(reversed(SPECS))] == [path.stem for path in reversed(SPECS)]


def test_sub_tables_equal_inline_tables() -> None:
    text = GATED.read_text("utf-8")
    inline = 'v     = { shape = ["V"], heads = "Hv", dtype = "data" }\n'
    assert inline in text
    moved = text.replace(inline, "") + '[inputs.v]\nshape = ["V"]\nheads = "Hv"\ndtype = "data"\n'
    spec, plain = parse_spec(moved, "x.toml"), parse_spec(text, "x.toml")
    assert sorted(map(_facts, spec.inputs)) == sorted(map(_facts, plain.inputs))
    assert spec.input("v").span.text == "[inputs.v]"


def _facts(entry: object) -> str:
    return repr({key: value for key, value in vars(entry).items() if key != "span"})


def test_windows_line_ends_change_nothing() -> None:
    text = GATED.read_text("utf-8")
    assert parse_spec(text.replace("\n", "\r\n"), "x.toml") == parse_spec(text, "x.toml")


def test_primed_names_and_multi_line_expressions() -> None:
    text = GATED.read_text("utf-8")
    text = (
        text.replace('Vn = "U - W @ S"', "\"V'\" = '''\n  U\n  - W @ S'''")
        .replace("@ Vn", "@ V'")
        .replace("* Vn", "* V'")
    )
    spec = parse_spec(text, "x.toml")
    assert show_spec(spec) == show_spec(load_spec(GATED)).replace("Vn", "V'")
    span = spec.stage("V'").expression.span
    assert span.text == "  U"
    product = spec.stage("V'").expression
    assert isinstance(product, Binary)
    assert (product.right.span.text, product.right.span.column) == ("  - W @ S'''", 5)


def test_the_order_of_the_recurrence_decides_what_the_output_may_read() -> None:
    text = (ROOT / "specs" / "simple_gla.toml").read_text("utf-8")
    old = text.replace("S_next^T @ q", "S^T @ q")
    assert parse_spec(old, "x.toml").recurrence_stage("o").text == "scale * (S^T @ q)"
    lines = [line for line in text.split("\n") if line.startswith(("S_next =", "o      ="))]
    swapped = text.replace("\n".join(lines), "\n".join(reversed(lines)))
    with pytest.raises(QlagenError) as caught:
        parse_spec(swapped, "x.toml")
    assert (caught.value.code, caught.value.message) == ("E-ORDER", "'o' uses 'S_next' before it is defined")


def test_another_format_is_named_before_its_unknown_tables() -> None:
    with pytest.raises(QlagenError) as caught:
        parse_spec("[spec]\nformat = 2\n[unknown]\n", "x.toml")
    assert caught.value.render().split("\n")[0] == (
        "x.toml:2:10: error[E-FORMAT]: format 2 is not supported; this release reads format 1"
    )


def test_other_sizes_keep_their_symbols() -> None:
    text = GATED.read_text("utf-8").replace("K = 128", "K = 64").replace("V = 128", "V = 64")
    spec = parse_spec(text, "x.toml")
    assert spec.dims == (("K", 64), ("V", 64))
    assert spec.stage("S1").expression.shape == ("K", "V")
    with pytest.raises(QlagenError, match=r"inner dimensions K and V differ"):
        parse_spec(text.replace("U - W @ S", "U - W @ S^T"), "x.toml")


@pytest.mark.parametrize(
    ("written", "bounds"),
    [("<=0", (None, 0.0)), ("<= -0.5", (None, -0.5)), ("[-5, 0]", (-5.0, 0.0)), ("[-20,-1.25]", (-20.0, -1.25))],
)
def test_ranges_of_a_log_gate(written: str, bounds: tuple[float | None, float | None]) -> None:
    text = GATED.read_text("utf-8").replace('range = "<=0"', f'range = "{written}"')
    assert parse_spec(text, "x.toml").input("g").range == bounds


def test_a_gate_per_channel_has_a_row_of_decays() -> None:
    text = (ROOT / "specs" / "simple_gla.toml").read_text("utf-8")
    text = text.replace("g     = { shape = []", 'g     = { shape = ["K"]')
    with pytest.raises(QlagenError) as caught:
        parse_spec(text, "x.toml")
    assert caught.value.message == "decay takes a [C, 1] argument, got G [C, K]"
    stages = text.replace(" + (Q @ K^T) * decay(G) @ V)", ")").replace(
        "total(G) * S + K^T", "total(G)^T * S + (to_end(G) * K)^T"
    )
    spec = parse_spec(stages.replace("(to_end(G) * V)", "V"), "x.toml")
    assert "S1 [K, V] = total(G)^T * S + (to_end(G) * K)^T @ V" in show_spec(spec)


# Twelve and more ways to spoil a good spec; each must be refused with the code, at the line that was spoilt.
MUTANTS = [
    ("A @ (beta * V)", "A @ (beta * V", "E-SYNTAX"),
    ("U - W @ S", "U - S @ W", "E-SHAPE"),
    ("stril(beta", "(beta", "E-STRUCT"),
    ("stril(beta", "tril(beta", "E-STRUCT"),
    ("inv_unit_lower", "__import__", "E-FUNC"),
    ("U - W @ S", "U - O @ S", "E-ORDER"),
    ("K^T @ (to_end(G) * Vn)", "K^T @ (exp(-G) * Vn)", "E-FUNC"),
    ("U - W @ S", "U - W $ S", "E-LEX"),
    ('state_out = "S1"', 'state_out = "Vn"', "E-SHAPE"),
    ("[grad]", "[gradient]", "E-TABLE"),
    ("format = 1", "format = 2", "E-FORMAT"),
    ("U - W @ S", "U - W @ Z", "E-NAME"),
    ("v - decayed^T @ k", "v - decayed @ k", "E-SHAPE"),
    ("beta * from_start(G)", "beta * diag(beta)", "E-FUNC"),
    ("from_start(G) * Q", "G * Q", "E-LOGGATE"),
    ('W  = "A', 'V  = "A', "E-REDEF"),
]


@pytest.mark.parametrize(("good", "bad", "code"), MUTANTS, ids=[f"{bad} {code}" for _, bad, code in MUTANTS])
def test_mutants_are_refused_where_they_were_made(good: str, bad: str, code: str) -> None:
    text = GATED.read_text("utf-8")
    assert text.count(good) == 1
    line = text[: text.index(good)].count("\n") + 1
    with pytest.raises(QlagenError) as caught:
        parse_spec(text.replace(good, bad), "x.toml")
    assert caught.value.code == code
    assert caught.value.span is not None
    assert caught.value.span.line == line
