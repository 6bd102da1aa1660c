"""The oracle against token loops written by hand, one head and one sequence at a time."""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from qlagen.verify import reference
from qlagen.verify.reference import Argument, Recurrence, evaluate, parse, run

Array = npt.NDArray[np.float64]
KEY, VALUE = 5, 3

QKV = (
    Argument("q", "q", KEY, "key"),
    Argument("k", "k", KEY, "key"),
    Argument("v", "v", VALUE, "value"),
)
GATE = Argument("g", "a", None, "value", log_gate=True)
BETA = Argument("beta", "beta", None, "value")
SCALE = Argument("scale", "scale", None, "none")


def recurrence(next_state: str, *arguments: Argument) -> Recurrence:
    lines = (("S_next", next_state), ("o", "scale * (S_next^T @ q)"))
    return Recurrence(lines, "S", "S_next", "o", (*arguments, SCALE), KEY, VALUE)


GATED_DELTA_RULE = recurrence("a * S + (beta * k) @ (v - a * (S^T @ k))^T", *QKV, GATE, BETA)
DELTA_RULE = recurrence("S + (beta * k) @ (v - S^T @ k)^T", *QKV, BETA)
SCALAR_DECAY = recurrence("a * S + k @ v^T", *QKV, GATE)


CHANNEL_GATE = Argument("g", "a", KEY, "value", log_gate=True)
READS_BEFORE_THE_DECAY = recurrence("a * S + beta * k @ (v - S^T @ k)^T", *QKV, CHANNEL_GATE, BETA)
STEPS = 3
SEVERAL_STEPS = Recurrence(
    lines=(("first", "a * S"), ("twice", "2 * S_next"), ("o", "scale * (twice^T @ q)")),
    state="S",
    next_state="S_next",
    output="o",
    arguments=(
        Argument("q", "q", KEY, "key"),
        Argument("k", "k", KEY, "key", steps=STEPS),
        Argument("v", "v", VALUE, "value", steps=STEPS),
        GATE,
        Argument("beta", "beta", None, "value", steps=STEPS),
        SCALE,
    ),
    key_size=KEY,
    value_size=VALUE,
    step=(("error", "beta * (v - S^T @ k)"), ("S_next", "S + k @ error^T")),
    first_state="first",
)


def gated_delta_step(state: Array, q: Array, k: Array, v: Array, g: float, beta: float) -> Array:
    state = np.exp(g) * state
    return state + beta * np.outer(k, v - state.T @ k)


def delta_step(state: Array, q: Array, k: Array, v: Array, beta: float) -> Array:
    return state - beta * np.outer(k, k @ state) + beta * np.outer(k, v)


def scalar_decay_step(state: Array, q: Array, k: Array, v: Array, g: float) -> Array:
    return np.exp(g) * state + np.outer(k, v)


def by_hand(
    step: Callable[..., Array], arrays: dict[str, Array], spans: list[tuple[int, int, int]], initial: Array | None
) -> tuple[Array, Array]:
    """One head and one token at a time; `spans` are (batch, first row, end row)."""
    v = arrays["v"]
    heads, per_key = v.shape[2], v.shape[2] // arrays["k"].shape[2]
    out = np.zeros(v.shape)
    final = np.zeros((len(spans), heads, KEY, VALUE))
    for n, (batch, first, end) in enumerate(spans):
        for h in range(heads):
            state = np.zeros((KEY, VALUE)) if initial is None else initial[n, h]
            for t in range(first, end):
                tokens = [arrays["q"][batch, t, h // per_key], arrays["k"][batch, t, h // per_key], v[batch, t, h]]
                tokens += [arrays[name][batch, t, h] for name in ("g", "beta") if name in arrays]
                state = step(state, *tokens)
                out[batch, t, h] = arrays["scale"] * (tokens[0] @ state)
            final[n, h] = state
    return out, final


def make(names: tuple[str, ...], batch: int, tokens: int, key_heads: int, value_heads: int) -> dict[str, Array]:
    rng = np.random.default_rng(7)
    k = rng.standard_normal((batch, tokens, key_heads, KEY))
    every = {
        "q": rng.standard_normal((batch, tokens, key_heads, KEY)),
        "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
        "v": rng.standard_normal((batch, tokens, value_heads, VALUE)),
        "g": -rng.exponential(0.3, (batch, tokens, value_heads)),
        "beta": rng.uniform(0, 2, (batch, tokens, value_heads)),
        "scale": np.float64(0.37),
    }
    return {name: every[name] for name in names}


OPERATORS = {
    "gated_delta_rule": (GATED_DELTA_RULE, gated_delta_step, ("q", "k", "v", "g", "beta", "scale")),
    "delta_rule": (DELTA_RULE, delta_step, ("q", "k", "v", "beta", "scale")),
    "scalar_decay": (SCALAR_DECAY, scalar_decay_step, ("q", "k", "v", "g", "scale")),
}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("heads", [(1, 1), (2, 2), (2, 6), (3, 6)])
def test_equals_a_loop_by_hand(operator: str, heads: tuple[int, int]) -> None:
    text, step, names = OPERATORS[operator]
    arrays = make(names, 2, 19, *heads)
    initial = np.random.default_rng(1).standard_normal((2, heads[1], KEY, VALUE))
    for start in (None, initial):
        out, final = run(text, arrays, initial_state=start)
        want_out, want_final = by_hand(step, arrays, [(0, 0, 19), (1, 0, 19)], start)
        np.testing.assert_allclose(out, want_out, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(final, want_final, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("heads", [(1, 1), (2, 6)])
def test_a_gate_for_each_channel(heads: tuple[int, int]) -> None:
    arrays = make(OPERATORS["gated_delta_rule"][2], 2, 19, *heads)
    arrays["g"] = -np.random.default_rng(3).exponential(0.3, (*arrays["g"].shape, KEY))
    initial = np.random.default_rng(1).standard_normal((2, heads[1], KEY, VALUE))

    def step(state: Array, q: Array, k: Array, v: Array, g: Array, beta: float) -> Array:
        return np.exp(g)[:, None] * state + beta * np.outer(k, v - state.T @ k)

    out, final = run(READS_BEFORE_THE_DECAY, arrays, initial_state=initial)
    want_out, want_final = by_hand(step, arrays, [(0, 0, 19), (1, 0, 19)], initial)
    np.testing.assert_allclose(out, want_out, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(final, want_final, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("heads", [(1, 1), (2, 6)])
def test_several_steps_for_each_token(heads: tuple[int, int]) -> None:
    """A token of three steps is three tokens of one, of which only the first decays and only the last is read."""
    arrays = make(OPERATORS["gated_delta_rule"][2], 1, 3 * 19, *heads)
    arrays["g"][:, np.arange(3 * 19) % STEPS > 0] = 0.0
    initial = np.random.default_rng(1).standard_normal((2, heads[1], KEY, VALUE))
    want_out, want_final = run(GATED_DELTA_RULE, arrays, np.array([0, 24, 57]), initial)
    grouped = {name: np.moveaxis(a.reshape(1, 19, STEPS, *a.shape[2:]), 2, 3) for name, a in arrays.items() if a.ndim}
    grouped |= {"q": arrays["q"][:, 2::3], "g": arrays["g"][:, ::3], "scale": arrays["scale"]}
    out, final = run(SEVERAL_STEPS, grouped, np.array([0, 8, 19]), initial)
    np.testing.assert_allclose(out, 2 * want_out[:, 2::3], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(final, want_final, rtol=1e-12, atol=1e-14)


def test_the_number_of_steps_must_fit() -> None:
    arrays = make(OPERATORS["gated_delta_rule"][2], 1, 4, 1, 1)
    with pytest.raises(ValueError, match=r"argument 'k' has shape \(1, 4, 1, 5\), needs 5 axes"):
        run(SEVERAL_STEPS, arrays)


@pytest.mark.parametrize("operator", OPERATORS)
def test_packed_sequences_with_empty_ones_and_unused_rows(operator: str) -> None:
    text, step, names = OPERATORS[operator]
    arrays = make(names, 1, 40, 2, 4)
    offsets = [0, 0, 7, 7, 8, 31, 31]
    spans = [(0, a, b) for a, b in itertools.pairwise(offsets)]
    initial = np.random.default_rng(2).standard_normal((6, 4, KEY, VALUE))
    untouched = initial.copy()
    arrays["v"][0, 31:] = np.nan
    out, final = run(text, arrays, np.array(offsets, dtype=np.int32), initial)
    want_out, want_final = by_hand(step, arrays, spans, initial)
    np.testing.assert_allclose(out, want_out, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(final, want_final, rtol=1e-12, atol=1e-14)
    assert np.all(out[0, 31:] == 0)
    for empty in (0, 2, 5):
        assert np.array_equal(final[empty], initial[empty])
    assert np.array_equal(initial, untouched)


def test_head_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = make(OPERATORS["gated_delta_rule"][2], 2, 9, 2, 6)
    whole = run(GATED_DELTA_RULE, arrays)
    monkeypatch.setattr(reference, "_BLOCK_ELEMENTS", 1)
    single = run(GATED_DELTA_RULE, arrays)
    assert np.array_equal(whole[0], single[0])
    assert np.array_equal(whole[1], single[1])


def test_no_tokens() -> None:
    arrays = make(OPERATORS["gated_delta_rule"][2], 2, 0, 1, 2)
    initial = np.ones((2, 2, KEY, VALUE))
    out, final = run(GATED_DELTA_RULE, arrays, initial_state=initial)
    assert out.shape == (2, 0, 2, VALUE)
    assert np.array_equal(final, initial)
    assert np.all(run(GATED_DELTA_RULE, arrays)[1] == 0)


def test_a_gate_of_minus_infinity_forgets() -> None:
    arrays = make(OPERATORS["gated_delta_rule"][2], 1, 12, 1, 2)
    arrays["g"][0, 5] = -np.inf
    out, final = run(GATED_DELTA_RULE, arrays, initial_state=np.full((1, 2, KEY, VALUE), 3.0))
    tail = {name: value if name == "scale" else value[:, 5:] for name, value in arrays.items()}
    tail_out, tail_final = run(GATED_DELTA_RULE, tail)
    np.testing.assert_allclose(out[:, 5:], tail_out, rtol=1e-13)
    np.testing.assert_allclose(final, tail_final, rtol=1e-13)


def test_a_gate_per_channel_scales_the_rows_of_the_state() -> None:
    arrays = make(("q", "k", "v", "scale"), 1, 6, 1, 2)
    arrays["g"] = -np.random.default_rng(3).exponential(0.3, (1, 6, 2, KEY))
    text = recurrence("a * S + k @ v^T", *QKV, Argument("g", "a", KEY, "value", log_gate=True))
    out, final = run(text, arrays)
    for h in range(2):
        state = np.zeros((KEY, VALUE))
        for t in range(6):
            state = np.diag(np.exp(arrays["g"][0, t, h])) @ state + np.outer(arrays["k"][0, t, 0], arrays["v"][0, t, h])
        np.testing.assert_allclose(final[0, h], state, rtol=1e-12)
        np.testing.assert_allclose(out[0, 5, h], 0.37 * (arrays["q"][0, 5, 0] @ state), rtol=1e-12)


def test_expressions() -> None:
    names = {"x": np.array([[1.0, 2.0], [3.0, 4.0]]), "y": np.array([[5.0], [7.0]]), "s": np.array([[2.0]])}
    for text, want in {
        "x - y - 1": names["x"] - names["y"] - 1,
        "-x + -(-y)": names["y"] - names["x"],
        "2 * x @ y": 2 * names["x"] @ names["y"],
        "s * x @ y * s": 4 * names["x"] @ names["y"],
        "y @ y^T": names["y"] @ names["y"].T,
        "x^T^T - x": np.zeros((2, 2)),
        "y^T @ x^T": (names["x"] @ names["y"]).T,
        "x*y": names["x"] * names["y"],
        "x - (y - s)": names["x"] - names["y"] + 2,
    }.items():
        np.testing.assert_array_equal(evaluate(parse(text), names), want, err_msg=text)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("x +", "ends too early"),
        ("(x", "closing parenthesis"),
        ("x $ y", "cannot read '$ y'"),
        ("x y", "unexpected 'y'"),
        ("* x", "unexpected '*'"),
        ("", "ends too early"),
    ],
)
def test_text_that_does_not_parse(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part.replace("*", r"\*").replace("$", r"\$")):
        parse(text)


def test_bad_calls() -> None:
    arrays = make(OPERATORS["delta_rule"][2], 2, 4, 2, 4)
    without = {name: value for name, value in arrays.items() if name != "beta"}
    with pytest.raises(ValueError, match="'beta' is missing"):
        run(DELTA_RULE, without)
    with pytest.raises(ValueError, match="batch of 1, got 2"):
        run(DELTA_RULE, arrays, [0, 4])
    with pytest.raises(ValueError, match=r"needs \[N, Hv, K, V\] = \(2, 4, 5, 3\)"):
        run(DELTA_RULE, arrays, initial_state=np.zeros((2, 4, VALUE, KEY)))
    with pytest.raises(ValueError, match="'v' has shape"):
        run(DELTA_RULE, {**arrays, "v": arrays["v"][:, :3]})
    with pytest.raises(ValueError, match="3 value heads are not a multiple of 2"):
        run(DELTA_RULE, {**arrays, "v": arrays["v"][:, :, :3], "beta": arrays["beta"][:, :, :3]})
    one = {name: value if name == "scale" else value[:1] for name, value in arrays.items()}
    for offsets in ([0, 3, 2], [1, 4], [0, 5]):
        with pytest.raises(ValueError, match="must rise from 0 to at most 4"):
            run(DELTA_RULE, one, offsets)


def test_it_imports_numpy_and_the_standard_library_only() -> None:
    tree = ast.parse(Path(reference.__file__).read_text(encoding="utf-8"))
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    outside = {name.split(".")[0] for name in found} - set(sys.stdlib_module_names)
    assert outside == {"numpy"}
