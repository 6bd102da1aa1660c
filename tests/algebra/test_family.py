"""Gates per channel, gates before a token's decay, several steps per token: values, proofs, mutants and exponents."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from qlagen.algebra import ir
from qlagen.algebra.build import build_form, build_recurrence
from qlagen.algebra.derivation import Form
from qlagen.algebra.evaluate import evaluate
from qlagen.algebra.exact import equals_recurrence
from qlagen.algebra.facts import Facts
from qlagen.algebra.fields import Array, Float64, PrimeField, round_bfloat16
from qlagen.algebra.prove import prove
from qlagen.algebra.rules import RULES, matches
from qlagen.algebra.text import show
from qlagen.algebra.trial import draw_point
from qlagen.errors import QlagenError
from qlagen.spec.model import OpSpec
from qlagen.verify.problem import recurrence_of
from qlagen.verify.reference import run

from .operators import FAMILY, NAMES, derivation, spec

PRIME = 2147483629
EVERY = (*NAMES, *FAMILY)


def small(name: str, *edits: tuple[str, str]) -> OpSpec:
    """The spec at K = 6, V = 5."""
    sizes = dict(spec(name).dims)
    return spec(name, (f"K = {sizes['K']}", "K = 6"), (f"V = {sizes['V']}", "V = 5"), *edits)


# Proofs


@pytest.mark.parametrize("name", FAMILY)
def test_both_forms_are_proven(name: str) -> None:
    op = small(name)
    for form in (build_form(op), derivation(name).chosen):
        proof = prove(op, form)
        assert (proof.chunk, proof.key_dim, proof.value_dim) == (64, 6, 5)
        assert 0 < proof.bound < 1e-12
        assert all(prove(op, form, chunk=chunk).chunk == chunk for chunk in (1, 2, 7))


@pytest.mark.parametrize("name", FAMILY)
def test_both_forms_are_the_recurrence_as_polynomials(name: str) -> None:
    for form in (build_form(spec(name)), derivation(name).chosen):
        assert all(equals_recurrence(spec(name), form, chunk=chunk) for chunk in (1, 2, 3))


# The stage that is edited, what it says, what the edit makes of it.
MUTANTS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "kda": (
        ("A", "stril(beta * gdot(K, K, G))", "stril(gdot(K, K, G))"),
        ("A", "stril(beta * gdot(K, K, G))", "stril(beta * (K @ K^T))"),
        ("A", "stril(beta * gdot(K, K, G))", "beta * gdot(K, K, before(G))"),
        ("A", "stril(beta * gdot(K, K, G))", "stril(beta * gdot(from_start(G) * K, K, G))"),
        ("W", "beta * from_start(G) * K", "beta * from_start(before(G)) * K"),
        ("W", "beta * from_start(G) * K", "beta * K"),
        ("U", "A @ (beta * V)", "A @ V"),
        ("Vn", "U - W @ S", "U + W @ S"),
        ("O", "gdot(Q, K, G)", "gdot(K, Q, G)"),
        ("O", "gdot(Q, K, G)", "tril(Q @ K^T)"),
        ("O", "from_start(G) * Q @ S", "from_start(before(G)) * Q @ S"),
        ("S1", "(to_end(G) * K)^T @ Vn", "(from_start(G) * K)^T @ Vn"),
        ("S1", "total(G)^T * S", "S"),
    ),
    "rwkv7": (
        ("T", "gdot(KAPPA, B, before(W))", "gdot(B, KAPPA, before(W))"),
        ("T", "gdot(KAPPA, B, before(W))", "stril(gdot(KAPPA, B, W))"),
        ("T", "gdot(KAPPA, B, before(W))", "-gdot(KAPPA, B, before(W))"),
        ("X", "from_start(before(W)) * KAPPA", "from_start(W) * KAPPA"),
        ("X", "from_start(before(W)) * KAPPA", "KAPPA"),
        ("Y", "gdot(KAPPA, K, before(W))", "gdot(KAPPA, K, W)"),
        ("Y", "gdot(KAPPA, K, before(W))", "stril(KAPPA @ K^T)"),
        ("Z", "Y + X @ S", "Y - X @ S"),
        ("O", "gdot(R, K, W)", "gdot(R, K, before(W))"),
        ("O", "- gdot(R, B, W) @ Z", "- gdot(R, B, before(W)) @ Z"),
        ("O", "from_start(W) * R @ S", "from_start(before(W)) * R @ S"),
        ("S1", "(to_end(W) * K)^T @ V", "(to_end(W) * B)^T @ V"),
        ("S1", "- (to_end(W) * B)^T @ Z", "+ (to_end(W) * B)^T @ Z"),
    ),
    "gated_delta_product": (
        ("A", "stril(beta * (K @ K^T) * decay(each(G)))", "stril(beta * (K @ K^T))"),
        ("A", "stril(beta * (K @ K^T) * decay(each(G)))", "beta * (K @ K^T) * decay(before(each(G)))"),
        ("A", "stril(beta * (K", "stril(2 * beta * (K"),
        ("A", "inv_unit_lower(stril(beta", "inv_unit_lower(-stril(beta"),
        ("W", "beta * from_start(each(G)) * K", "beta * from_start(before(each(G))) * K"),
        ("W", "beta * from_start(each(G)) * K", "from_start(each(G)) * K"),
        ("U", "A @ (beta * V)", "beta * (A @ V)"),
        ("Vn", "U - W @ S", "U + W @ S"),
        ("O", "(Q @ K^T) * last(decay(each(G))) @ Vn", "last(tril(each(Q) @ K^T)) @ Vn"),
        ("O", "(Q @ K^T) * last(decay(each(G)))", "(Q @ K^T) * last(decay(before(each(G))))"),
        ("O", "from_start(G) * Q @ S", "from_start(before(G)) * Q @ S"),
        ("S1", "to_end(each(G)) * Vn", "Vn"),
        ("S1", "total(G) * S +", "S +"),
    ),
    "comba": (
        ("A", "decay(before(G))", "stril(decay(G))"),
        ("A", "(P @ K^T)", "(K @ P^T)"),
        ("W", "from_start(before(G)) * P", "from_start(G) * P"),
        ("O", "decay(G) @ Vn", "decay(before(G)) @ Vn"),
    ),
}
CASES = [(name, *mutant) for name, mutants in MUTANTS.items() for mutant in mutants]


def test_three_specs_have_twelve_mutants() -> None:
    assert sum(len(mutants) >= 12 for mutants in MUTANTS.values()) == 3


@pytest.mark.parametrize(("name", "stage", "old", "new"), CASES, ids=[f"{n}-{s}-{b}" for n, s, _, b in CASES])
def test_mutant_is_rejected_at_its_stage(name: str, stage: str, old: str, new: str) -> None:
    op = small(name, (old, new))
    with pytest.raises(QlagenError, match=rf"stage '{stage}' is wrong: with a chunk of \d token") as caught:
        prove(op, build_form(op), chunk=8)
    assert caught.value.code == "E-PROOF"


# Values against the oracle


def oracle_inputs(op: OpSpec, tokens: int, strength: float, seed: int) -> tuple[dict[str, Array], Array]:
    """One head: [1, T, 1, ...] or a number for each input, within its declared range, and a state [1, 1, K, V]."""
    generator = np.random.default_rng(seed)
    sizes = dict(op.dims)
    arrays: dict[str, Array] = {}
    for item in op.inputs:
        if item.heads == "none":
            arrays[item.name] = np.asarray(0.3)
            continue
        drawn = generator.standard_normal((1, tokens, 1, *(sizes[d] for d in item.dims)))
        if item.role == "log_gate":
            drawn = -strength * np.abs(drawn)
        elif item.norm is not None:
            drawn *= item.norm / np.linalg.norm(drawn, axis=-1, keepdims=True)
        elif item.range != (None, None):
            low, high = item.range
            drawn = generator.uniform(low or 0.0, 1.0 if high is None else high, drawn.shape)
        arrays[item.name] = drawn
    return arrays, generator.standard_normal((1, 1, sizes["K"], sizes["V"]))


def chunked(
    op: OpSpec, form: Form, arrays: dict[str, Array], state: Array, chunk: int, pad: bool
) -> tuple[Array, Array]:
    """The form, chunk after chunk. A last chunk that is not full is shorter, or padded with zeros."""
    tokens = next(array.shape[1] for array in arrays.values() if array.ndim)
    carried, outputs = state[0, 0], [np.zeros((0, state.shape[-1]))]
    for first in range(0, tokens, chunk):
        rows = min(chunk, tokens - first)
        length = chunk if pad else rows
        env = {op.state: carried}
        for item in op.inputs:
            if item.heads == "none":
                env[item.chunk_symbol] = arrays[item.name].reshape(1, 1)
                continue
            value = arrays[item.name][0, first : first + rows, 0]
            value = np.concatenate([value, np.zeros((length - rows, *value.shape[1:]))])
            value = value.reshape(-1, 1 if item.width == "1" else value.shape[-1])
            env[item.chunk_symbol] = np.cumsum(value, axis=0) if item.role == "log_gate" else value
        output, carried = evaluate((form.output, form.state), env, length, Float64())
        outputs.append(output[:rows])
    return np.concatenate(outputs), carried


def forms(name: str, op: OpSpec) -> Iterator[Form]:
    yield build_form(op)
    yield derivation(name).chosen


@pytest.mark.parametrize("chunk", [4, 16, 64])
@pytest.mark.parametrize("name", FAMILY)
def test_values_are_those_of_the_oracle(name: str, chunk: int) -> None:
    op = small(name)
    for tokens in (0, 1, 5, 16, 37, 100):
        arrays, state = oracle_inputs(op, tokens, 0.4, seed=tokens)
        wanted, final = run(recurrence_of(op), arrays, initial_state=state)
        for form in forms(name, op):
            for pad in (False, True):
                output, carried = chunked(op, form, arrays, state, chunk, pad)
                np.testing.assert_allclose(
                    output, wanted[0, :, 0], rtol=0, atol=1e-12 * max(1, np.abs(wanted).max(initial=0))
                )
                np.testing.assert_allclose(carried, final[0, 0], rtol=0, atol=1e-12 * np.abs(final).max())


@pytest.mark.parametrize("name", [name for name in EVERY if any(i.role == "log_gate" for i in spec(name).inputs)])
@pytest.mark.parametrize("strength", [50.0, 1e4])
def test_no_exponent_is_positive(name: str, strength: float) -> None:
    """Decays far below the smallest number: a positive exponent of sums of them would overflow."""
    op = small(name)
    arrays, state = oracle_inputs(op, 40, strength, seed=3)
    wanted, final = run(recurrence_of(op), arrays, initial_state=state)
    with np.errstate(over="raise", invalid="raise"):
        for form in forms(name, op):
            output, carried = chunked(op, form, arrays, state, 16, False)
            np.testing.assert_allclose(output, wanted[0, :, 0], rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(carried, final[0, 0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_number_of_steps_is_a_dimension(steps: int) -> None:
    op = small("gated_delta_product", ("M = 2", f"M = {steps}"))
    assert op.sizes(4)["CM"] == 4 * steps
    arrays, state = oracle_inputs(op, 21, 0.4, seed=steps)
    wanted, final = run(recurrence_of(op), arrays, initial_state=state)
    output, carried = chunked(op, build_form(op), arrays, state, 8, False)
    np.testing.assert_allclose(output, wanted[0, :, 0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(carried, final[0, 0], rtol=1e-12, atol=1e-12)
    assert prove(op, build_form(op), chunk=5).bound < 1e-12


# Atoms

Q = ir.input_node("Q", ("C", "K"))
K = ir.input_node("K", ("C", "K"))
G = ir.input_node("G", ("C", "K"))
g = ir.input_node("g", ("C", "1"))
V = ir.input_node("V", ("C", "V"))
SIZES = {"C": 5, "CM": 10, "K": 3, "V": 4, "1": 1}


def values(field: str = "float") -> dict[str, Array]:
    generator = np.random.default_rng(5)
    shapes = {node.value: [SIZES[d] for d in node.shape] for node in (Q, K, V, G, g)}
    if field == "prime":
        return {name: generator.integers(1, PRIME, shape) for name, shape in shapes.items()}
    env = {name: generator.normal(size=shape) for name, shape in shapes.items()}
    return env | {name: np.cumsum(-np.abs(env[name]), axis=0) for name in ("G", "g")}


def value(node: ir.Node, field: Float64 | PrimeField | None = None) -> Array:
    env = values("prime" if isinstance(field, PrimeField) else "float")
    return evaluate((node,), env, SIZES["C"], field or Float64(), sizes=SIZES)[0]


class TestAtoms:
    def test_gdot_is_the_sum_that_it_says(self) -> None:
        env = values()
        for exclusive, node in ((False, ir.gdot(Q, K, G)), (True, ir.gdot(Q, K, ir.before(G)))):
            wanted = np.zeros((5, 5))
            for i in range(5):
                for j in range(i + (not exclusive)):
                    rows = env["G"][i - 1] if exclusive else env["G"][i]
                    wanted[i, j] = np.sum(env["Q"][i] * env["K"][j] * np.exp(rows - env["G"][j]))
            np.testing.assert_allclose(value(node), wanted, rtol=1e-13, atol=1e-15)
            assert ir.is_lower(node)
            assert ir.is_strictly_lower(node) == exclusive

    def test_decay_before_leaves_the_token_out(self) -> None:
        gate = values()["g"][:, 0]
        wanted = [[np.exp(gate[i - 1] - gate[j]) if i > j else 0.0 for j in range(5)] for i in range(5)]
        np.testing.assert_allclose(value(ir.decay(ir.before(g))), wanted, rtol=1e-13)
        start = value(ir.from_start(ir.before(G)))
        np.testing.assert_allclose(start, np.exp(np.vstack([np.zeros(3), values()["G"][:-1]])), rtol=1e-13)

    def test_one_equal_gate_for_all_channels_leaves_the_product(self) -> None:
        """gdot of a gate that is the same in every channel is a product times a decay, also before the decay."""
        field = PrimeField(PRIME)
        env = values("prime")
        spread = ir.input_node("spread", ("C", "K"))
        env["spread"] = np.repeat(env["g"], 3, axis=1)
        for of in (lambda gate: gate, ir.before):
            inside = ir.gdot(Q, K, of(spread))
            outside = ir.multiply(ir.matmul(Q, ir.transpose(K)), ir.decay(of(g)))
            have, want = evaluate((inside, outside), env, 5, field, sizes=SIZES)
            assert np.array_equal(have, want)

    def test_rows_of_steps_and_back(self) -> None:
        rows = ir.each(V, "CM")
        assert np.array_equal(value(rows), np.repeat(values()["V"], 2, axis=0))
        assert ir.last(rows) is V
        many = ir.matmul(rows, ir.transpose(rows))
        assert np.array_equal(value(ir.last(many)), value(many)[1::2])
        assert np.array_equal(value(ir.decay(ir.each(g, "CM")))[::2, ::2], value(ir.decay(g)))

    def test_a_step_decays_at_the_tokens_first_step(self) -> None:
        """before(each(g)): only the first step of a token stands before its decay."""
        gate = value(ir.from_start(ir.before(ir.each(g, "CM"))))[:, 0]
        decays = np.exp(values()["g"][:, 0])
        np.testing.assert_allclose(gate, np.stack([np.append(1.0, decays[:-1]), decays], axis=1).ravel(), rtol=1e-13)
        assert ir.total(ir.each(g, "CM")) is ir.total(g)

    def test_integers_leave_them(self) -> None:
        twice = ir.linear(((2, Q),))
        assert ir.gdot(twice, ir.negate(K), G) is ir.linear(((-2, ir.gdot(Q, K, G)),))
        assert ir.gdot(ir.subtract(Q, Q), K, G) is ir.zero(("C", "C"))
        assert ir.each(twice, "CM") is ir.linear(((2, ir.each(Q, "CM")),))
        assert ir.last(ir.negate(ir.each(Q, "CM"))) is ir.negate(Q)

    def test_rounded_operands(self) -> None:
        env = {name: round_bfloat16(array) for name, array in values().items() if name != "G"} | {"G": values()["G"]}
        field = Float64(round_operand=round_bfloat16)
        exact, same = (evaluate((ir.gdot(Q, K, G),), env, 5, f)[0] for f in (Float64(), field))
        assert np.array_equal(exact, same)
        coarse = evaluate((ir.gdot(Q, K, G),), values(), 5, field)[0]
        assert 1e-4 < np.abs(coarse - value(ir.gdot(Q, K, G))).max() < 0.1

    @pytest.mark.parametrize(
        "wrong",
        [
            lambda: ir.gdot(Q, V, G),
            lambda: ir.gdot(g, g, g),
            lambda: ir.decay(G),
            lambda: ir.to_end(ir.before(G)),
            lambda: ir.total(ir.before(G)),
            lambda: ir.before(ir.before(G)),
            lambda: ir.each(ir.before(G), "CM"),
        ],
    )
    def test_misuse(self, wrong: object) -> None:
        with pytest.raises(ValueError, match="gate"):
            wrong()  # type: ignore[operator]


# Forms


@pytest.mark.parametrize("name", FAMILY)
def test_shown_stages_read_back(name: str) -> None:
    op = spec(name)
    form = build_form(op)
    edits = tuple((f'"{op.stage(stage).text}"', f'"{show(node)}"') for stage, node in form.stages)
    assert build_form(spec(name, *edits)).stages == form.stages


def test_steps_are_written_out_in_the_recurrence() -> None:
    output, state = build_recurrence(spec("gated_delta_product"))
    assert (output.shape, state.shape) == (("V", "1"), ("K", "V"))
    assert {"k.0", "k.1", "v.0", "v.1", "beta.0", "beta.1", "a", "S"} == ir.depends_on(state)
    assert ir.depends_on(output) == ir.depends_on(state) | {"q", "scale"}
    assert "k.2" in ir.depends_on(build_recurrence(spec("gated_delta_product"), 3)[1])


@pytest.mark.parametrize("name", FAMILY)
def test_every_rewrite_keeps_the_value(name: str) -> None:
    """Every match in the textbook and in the chosen form, exactly, at a random point."""
    op = small(name)
    sizes = op.sizes(5)
    generator = np.random.default_rng(1)
    point = draw_point(op, sizes, PRIME, generator).values
    applied = set()
    for form in forms(name, op):
        for match in matches((form.output, form.state), Facts.of(op)):
            applied.add(match.rule.name)
            want, have = evaluate((match.before, match.after), point, 5, PrimeField(PRIME), sizes=sizes)
            assert np.array_equal(want, have), f"{match.rule.name}: {show(match.before)} -> {show(match.after)}"
    assert {"distribute", "hoist scale", "slide scale"} & applied


def test_rules_of_gates_know_a_gate_before_the_decay() -> None:
    """The identities of decay atoms do not hold for before(G): whatever a rule makes of these has the same value."""
    gate = ir.before(g)
    lower = ir.multiply(ir.mask("lower"), ir.matmul(Q, ir.transpose(K)))
    strict = ir.multiply(ir.mask("strict"), lower)
    candidates = (
        ir.multiply(ir.decay(gate), ir.to_end(g)),
        ir.multiply(ir.decay(gate), ir.transpose(ir.from_start(gate))),
        ir.multiply(lower, ir.from_start(gate)),
        ir.multiply(ir.from_start(gate), ir.to_end(g)),
        ir.multiply(ir.decay(gate), ir.matmul(lower, lower)),
        ir.multiply(ir.decay(gate), ir.inverse(strict)),
        ir.inverse(ir.multiply(ir.decay(gate), ir.matmul(Q, ir.transpose(K)))),
    )
    field, facts = PrimeField(PRIME), Facts({}, {})
    for node in candidates:
        for after in (after for rule in RULES for after in rule.rewrite(node, facts)):
            assert np.array_equal(value(node, field), value(after, field)), f"{show(node)} -> {show(after)}"
