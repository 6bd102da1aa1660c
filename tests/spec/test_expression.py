"""The expression language: precedence, shapes, triangular structure, and its text form."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qlagen.errors import QlagenError
from qlagen.spec import format_expression
from qlagen.spec.document import SourceText, read_document
from qlagen.spec.parser import parse_expression
from qlagen.spec.typing import Scope, Symbol, Typed, broadcast_shape, matmul_shape

SYMBOLS = {
    "S": Symbol(("K", "V")),
    "Q": Symbol(("C", "K")),
    "K": Symbol(("C", "K")),
    "V": Symbol(("C", "V")),
    "V'": Symbol(("C", "V")),
    "G": Symbol(("C", "1"), log_gate=True),
    "H": Symbol(("C", "K"), log_gate=True),
    "B": Symbol(("CM", "K")),
    "beta": Symbol(("C", "1")),
    "scale": Symbol(("1", "1")),
    "M": Symbol(("C", "C")),
    "L": Symbol(("C", "C"), "strict"),
    "D": Symbol(("C", "C"), "lower"),
}
SCOPE = Scope("[stages]", SYMBOLS, line="X", step_rows="CM")


def parse(text: str) -> Typed:
    document = read_document(f"X = '''{text}'''", "x.toml")
    return parse_expression(document.source(("X",), text), SCOPE)


def code(text: str) -> str:
    with pytest.raises(QlagenError) as caught:
        parse(text)
    return caught.value.code


@pytest.mark.parametrize(
    ("text", "meaning", "shape"),
    [
        ("beta * Q @ S", "((beta * Q) @ S)", ("C", "V")),
        ("M * D @ V", "((M * D) @ V)", ("C", "V")),
        ("M @ D * V", None, None),
        ("M @ D @ V", "((M @ D) @ V)", ("C", "V")),
        ("M @ (D @ V)", "(M @ (D @ V))", ("C", "V")),
        ("V - V' + V", "((V - V') + V)", ("C", "V")),
        ("V - (V' + V)", "(V - (V' + V))", ("C", "V")),
        ("V + M @ V", "(V + (M @ V))", ("C", "V")),
        ("-M^T @ V", "((-(M^T)) @ V)", ("C", "V")),
        ("-(M @ V)", "(-(M @ V))", ("C", "V")),
        ("--V", "(-(-V))", ("C", "V")),
        ("K^T @ V", "((K^T) @ V)", ("K", "V")),
        ("(Q @ K^T)^T^T", "(((Q @ (K^T))^T)^T)", ("C", "C")),
        ("2 * scale * V", "((2 * scale) * V)", ("C", "V")),
        ("beta * beta^T", "(beta * (beta^T))", ("C", "C")),
        ("beta @ beta^T", "(beta @ (beta^T))", ("C", "C")),
        ("beta^T @ beta", "((beta^T) @ beta)", ("1", "1")),
        ("V + beta", "(V + beta)", ("C", "V")),
        ("V - scale", "(V - scale)", ("C", "V")),
        ("total(G) * S", "(total(G) * S)", ("K", "V")),
        ("to_end(G) * V", "(to_end(G) * V)", ("C", "V")),
        ("from_start(G) * decay(G)", "(from_start(G) * decay(G))", ("C", "C")),
        ("inv_unit_lower(stril(M)) @ V", "(inv_unit_lower(stril(M)) @ V)", ("C", "V")),
        ("from_start(H) * Q @ S", "((from_start(H) * Q) @ S)", ("C", "V")),
        ("total(H)^T * S", "((total(H)^T) * S)", ("K", "V")),
        ("gdot(Q, K, before(H)) @ V", "(gdot(Q, K, before(H)) @ V)", ("C", "V")),
        ("each(Q) @ B^T", "(each(Q) @ (B^T))", ("CM", "CM")),
        ("last(each(Q) @ B^T) @ B", "(last(each(Q) @ (B^T)) @ B)", ("C", "K")),
        ("tril(B @ B^T)", "tril(B @ (B^T))", ("CM", "CM")),
        ("total(each(H)) * Q", "(total(each(H)) * Q)", ("C", "K")),
    ],
)
def test_precedence_and_shape(text: str, meaning: str | None, shape: tuple[str, str] | None) -> None:
    if meaning is None:
        assert code(text) == "E-SHAPE"
        return
    node = parse(text).node
    assert node.shape == shape
    full = parse(meaning).node
    assert format_expression(node) == format_expression(full)
    assert without_spans(node) == without_spans(full)


def without_spans(node: object) -> object:
    if isinstance(node, tuple):
        return tuple(map(without_spans, node))
    if not hasattr(node, "span"):
        return node
    return (type(node).__name__, *(without_spans(value) for key, value in vars(node).items() if key != "span"))


@pytest.mark.parametrize(
    "text",
    [
        "U",
        "scale * ((beta * Q) @ S + ((Q @ K^T) * M) @ V)",
        "-(V + V')",
        "-V * 3",
        "V - (V - V')",
        "M @ (M @ V)",
        "(M + D)^T @ V",
        "(-M)^T @ V",
        "-M^T @ V",
        "inv_unit_lower(-stril(M))^T",
    ],
)
def test_text_form_is_a_fixed_point(text: str) -> None:
    text = text.replace("U", "V")
    assert format_expression(parse(text).node) == text


@pytest.mark.parametrize(
    ("text", "structure"),
    [
        ("stril(M)", "strict"),
        ("tril(M)", "lower"),
        ("decay(G)", "lower"),
        ("M", "full"),
        ("-stril(M)", "strict"),
        ("2 * stril(M)", "strict"),
        ("beta * stril(M) * decay(G)", "strict"),
        ("M * tril(M)", "lower"),
        ("L + stril(M)", "strict"),
        ("L - D", "lower"),
        ("L + M", "full"),
        ("L @ D", "strict"),
        ("D @ L", "strict"),
        ("D @ D", "lower"),
        ("L @ M", "full"),
        ("L^T", "full"),
        ("L^T * L", "strict"),
        ("inv_unit_lower(L)", "lower"),
        ("inv_unit_lower(L) @ L", "strict"),
        ("tril(L)", "lower"),
        ("decay(before(G))", "strict"),
        ("gdot(Q, K, H)", "lower"),
        ("gdot(Q, K, before(H))", "strict"),
        ("beta * gdot(Q, K, before(H))", "strict"),
        ("decay(each(G))", "lower"),
        ("decay(before(each(G)))", "strict"),
        ("gdot(B, B, before(each(H)))", "strict"),
    ],
)
def test_structure(text: str, structure: str) -> None:
    assert parse(text).structure == structure
    assert (
        (code(f"inv_unit_lower({text})") == "E-STRUCT") if structure != "strict" else parse(f"inv_unit_lower({text})")
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2", "E-SCALE"),
        ("-2", "E-SCALE"),
        ("2 * 3", "E-SCALE"),
        ("V + 1", "E-SCALE"),
        ("2 @ V", "E-SCALE"),
        ("2^T * V", "E-SCALE"),
        ("tril(2)", "E-SCALE"),
        ("G", "E-LOGGATE"),
        ("-G", "E-LOGGATE"),
        ("G^T @ V", "E-LOGGATE"),
        ("G * V", "E-LOGGATE"),
        ("decay(-G)", "E-LOGGATE"),
        ("decay(beta)", "E-LOGGATE"),
        ("tril(G)", "E-LOGGATE"),
        ("tril(V)", "E-SHAPE"),
        ("decay(H)", "E-SHAPE"),
        ("gdot(Q, K, G)", "E-SHAPE"),
        ("gdot(Q, K^T, H)", "E-SHAPE"),
        ("gdot(B, K, H)", "E-SHAPE"),
        ("gdot(Q, 2, H)", "E-SCALE"),
        ("gdot(Q, H, H)", "E-LOGGATE"),
        ("gdot(Q, K, V)", "E-LOGGATE"),
        ("gdot(Q, K)", "E-ARITY"),
        ("before(Q)", "E-LOGGATE"),
        ("before(G)", "E-LOGGATE"),
        ("each(G)", "E-LOGGATE"),
        ("before(G) * V", "E-LOGGATE"),
        ("total(before(G)) * V", "E-LOGGATE"),
        ("to_end(before(G))", "E-LOGGATE"),
        ("decay(before(before(G)))", "E-LOGGATE"),
        ("decay(each(before(G)))", "E-LOGGATE"),
        ("last(each(G)) * V", "E-LOGGATE"),
        ("each(B)", "E-SHAPE"),
        ("last(Q)", "E-SHAPE"),
        ("last(scale)", "E-SHAPE"),
        ("tril(B)", "E-SHAPE"),
        ("inv_unit_lower(decay(before(G)) + decay(G))", "E-STRUCT"),
        ("tril(M, M)", "E-ARITY"),
        ("tril()", "E-ARITY"),
        ("tril", "E-SYNTAX"),
        ("M(V)", "E-SYNTAX"),
        ("V V", "E-SYNTAX"),
        ("(V", "E-SYNTAX"),
        ("V)", "E-SYNTAX"),
        ("V,", "E-SYNTAX"),
        ("+V", "E-SYNTAX"),
        ("V''", "E-LEX"),
        ("M^Tx", "E-LEX"),
        ("M^ T", "E-LEX"),
        ("V\u00a0", "E-LEX"),
        ("\u0662 * V", "E-LEX"),
        ("X + V", "E-ORDER"),
        ("Y", "E-NAME"),
        ("1000000 * V", "E-SIZE"),
        (" " * 4097, "E-SIZE"),
        ("(" * 100 + "V" + ")" * 100, "E-DEPTH"),
        ("-" * 100 + "V", "E-DEPTH"),
        ("M" + "^T" * 100, "E-DEPTH"),
        ("V" + " + V" * 100, "E-DEPTH"),
        ("tril(" * 100 + "M" + ")" * 100, "E-DEPTH"),
    ],
)
def test_codes(text: str, expected: str) -> None:
    assert code(text) == expected


def test_limits_are_reachable_from_below() -> None:
    assert parse("V" + " + V" * 63).depth == 64
    assert parse("(" * 63 + "V" + ")" * 63).node.shape == ("C", "V")
    assert parse("V" + " " * 4095).node.shape == ("C", "V")
    assert parse("999999 * V").node.shape == ("C", "V")


def test_shape_rules() -> None:
    assert broadcast_shape(("C", "1"), ("1", "K")) == ("C", "K")
    assert broadcast_shape(("C", "K"), ("C", "V")) is None
    assert matmul_shape(("C", "K"), ("K", "V")) == ("C", "V")
    assert matmul_shape(("C", "1"), ("K", "V")) is None


def test_a_source_without_places_points_at_its_value() -> None:
    document = read_document("X = 'V + Y'", "x.toml")
    source = SourceText(document, "V + Y", (), (4, 11))
    assert source.span(4, 5) == document.span(4, 11)


def square(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """C x C expressions, written with all parentheses."""
    pairs = st.tuples(inner, st.sampled_from("+-*@"), inner)
    return st.one_of(
        pairs.map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"),
        inner.map(lambda text: f"(-{text})"),
        inner.map(lambda text: f"({text})^T"),
        inner.map(lambda text: f"stril({text})"),
        inner.map(lambda text: f"inv_unit_lower(stril({text}))"),
        inner.map(lambda text: f"(3 * {text})"),
        inner.map(lambda text: f"(beta * {text})"),
        inner.map(lambda text: f"({text} * (-2))"),
    )


LEAVES = st.sampled_from(["M", "L", "D", "decay(G)", "(Q @ K^T)", "(V @ (V')^T)", "(beta @ from_start(G)^T)"])


@settings(max_examples=200, deadline=None)
@given(st.recursive(LEAVES, square, max_leaves=12))
def test_formatting_and_parsing_round_trip(text: str) -> None:
    typed = parse(text)
    shown = format_expression(typed.node)
    again = parse(shown)
    assert without_spans(again.node) == without_spans(typed.node)
    assert (again.structure, again.depth) == (typed.structure, typed.depth)
    assert format_expression(again.node) == shown
    assert len(shown) <= len(text)
