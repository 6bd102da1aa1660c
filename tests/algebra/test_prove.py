"""Right forms are proven with the bound asked for; wrong ones are rejected at the stage that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import sympy

from qlagen.algebra.build import build_form, build_recurrence, chunk_inputs
from qlagen.algebra.derivation import Form
from qlagen.algebra.derive import derive
from qlagen.algebra.evaluate import evaluate
from qlagen.algebra.exact import Polynomials
from qlagen.algebra.localise import solve_modular
from qlagen.algebra.measure import Measure, log_sum, measure
from qlagen.algebra.prove import PRIMES, difference_measure, failure_probability, prove
from qlagen.algebra.trial import HIGH, LOW, draw_prime, find_mismatch, is_prime
from qlagen.errors import QlagenError
from qlagen.spec import load_spec

from .operators import NAMES, derivation, spec, text

BAD_SPECS = Path(__file__).resolve().parents[1] / "bad_specs"

# The stage that is edited, what it says, what the edit makes of it.
MUTANTS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "gated_delta_rule": (
        ("A", "stril(beta * (K @ K^T) * decay(G))", "stril(beta * (K @ K^T))"),
        ("A", "stril(beta * (K", "stril(beta^T * (K"),
        ("A", "stril(beta * (K @ K^T)", "stril((K @ K^T)"),
        ("A", "inv_unit_lower(stril(beta", "inv_unit_lower(2 * stril(beta"),
        ("A", "inv_unit_lower(stril(beta", "inv_unit_lower(-stril(beta"),
        ("W", "beta * from_start(G) * K", "from_start(G) * K"),
        ("W", "beta * from_start(G) * K", "beta * K"),
        ("W", "beta * from_start(G) * K", "beta * to_end(G) * K"),
        ("U", "A @ (beta * V)", "beta * (A @ V)"),
        ("U", "A @ (beta * V)", "A @ V"),
        ("U", "A @ (beta * V)", "beta * V"),
        ("U", "A @ (beta * V)", "A^T @ (beta * V)"),
        ("Vn", "U - W @ S", "U + W @ S"),
        ("Vn", '"U - W @ S"', '"U"'),
        ("O", "decay(G) @ Vn", "decay(G) @ U"),
        ("O", "(Q @ K^T) * decay(G)", "stril((Q @ K^T) * decay(G))"),
        ("O", "from_start(G) * Q @ S", "Q @ S"),
        ("O", "from_start(G) * Q @ S", "to_end(G) * Q @ S"),
        ("O", "(Q @ K^T)", "(K @ Q^T)"),
        ("O", "(Q @ K^T) * decay(G) @ Vn", "tril(Q @ K^T) @ Vn"),
        ("O", "scale * (from_start(G) * Q @ S +", "(scale * from_start(G) * Q @ S +"),
        ("S1", "to_end(G) * Vn", "Vn"),
        ("S1", "to_end(G) * Vn", "from_start(G) * Vn"),
        ("S1", "total(G) * S +", "S +"),
        ("S1", "K^T @ (to_end(G) * Vn)", "K^T @ (to_end(G) * U)"),
    ),
    "delta_rule": (
        ("A", "stril(beta * (K @ K^T))", "stril(K @ K^T)"),
        ("W", "A @ (beta * K)", "A @ K"),
        ("U", "A @ (beta * V)", "A^T @ (beta * V)"),
        ("Vn", "U - W @ S", "U - 2 * W @ S"),
        ("O", "tril(Q @ K^T) @ Vn", "Q @ K^T @ Vn"),
        ("S1", "K^T @ Vn", "K^T @ U"),
    ),
    "simple_gla": (
        ("O", "from_start(G) * Q @ S", "to_end(G) * Q @ S"),
        ("O", "(Q @ K^T) * decay(G) @ V", "tril(Q @ K^T) @ V"),
        ("S1", "(to_end(G) * V)", "(from_start(G) * V)"),
        ("S1", "total(G) * S", "total(G) * total(G) * S"),
    ),
}
CASES = [(name, *mutant) for name, mutants in MUTANTS.items() for mutant in mutants]


@pytest.mark.parametrize("name", NAMES)
def test_both_forms_are_proven_at_full_size(name: str) -> None:
    op = spec(name)
    for form in (build_form(op), derivation(name).chosen):
        proof = prove(op, form)
        assert (proof.chunk, proof.key_dim, proof.value_dim) == (64, 128, 128)
        assert 0 < proof.bound < 1e-12
        assert proof.trials >= 2


@pytest.mark.parametrize("chunk", [1, 2, 7])
def test_other_chunk_lengths(chunk: int) -> None:
    assert prove(spec("gated_delta_rule"), derivation("gated_delta_rule").chosen, chunk=chunk).chunk == chunk


@pytest.mark.parametrize(("name", "stage", "old", "new"), CASES, ids=[f"{n}-{s}-{b}" for n, s, _, b in CASES])
def test_mutant_is_rejected_at_its_stage(name: str, stage: str, old: str, new: str) -> None:
    assert text(name).count(old) == 1
    op = spec(name, (old, new))
    with pytest.raises(QlagenError, match=rf"stage '{stage}' is wrong: with a chunk of \d token") as caught:
        prove(op, build_form(op))
    assert caught.value.code == "E-PROOF"
    assert caught.value.span == op.stage(stage).span


def test_an_output_that_lacks_most_inputs() -> None:
    op = spec(
        "gated_delta_rule", ('"scale * (from_start(G) * Q @ S + (Q @ K^T) * decay(G) @ Vn)"', '"scale * (Q @ S)"')
    )
    with pytest.raises(QlagenError, match="stage 'O' is wrong: with a chunk of 1 token") as caught:
        prove(op, build_form(op))
    assert caught.value.notes[0] == "stage 'S1' is right"


def test_derive_rejects_a_wrong_spec() -> None:
    with pytest.raises(QlagenError, match="E-PROOF"):
        derive(spec("simple_gla", ("total(G) * S", "S")))


@pytest.mark.parametrize("name", sorted(p.stem for p in BAD_SPECS.glob("proof_*.toml")))
def test_message_is_pinned(name: str, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BAD_SPECS)
    op = load_spec(f"{name}.toml")
    with pytest.raises(QlagenError) as caught:
        prove(op, build_form(op))
    golden(BAD_SPECS / f"{name}.txt", caught.value.render() + "\n")


def test_one_wrong_entry_is_found() -> None:
    """A form that is right but for one unit added to every entry of one row is not accepted."""
    op = spec("delta_rule")
    form = build_form(op)
    from qlagen.algebra import ir

    slip = ir.multiply(ir.total(ir.input_node("beta", ("C", "1"))), ir.ones(("C", "V")))
    wrong = Form(ir.add(form.output, slip), form.state, form.stages)
    mismatch = find_mismatch(op, wrong, {"1": 1, "C": 4, "K": 3, "V": 2}, np.random.default_rng(0))
    assert mismatch is not None
    assert (mismatch.state, mismatch.row, mismatch.column, mismatch.both) == (False, 0, 0, False)


class TestBound:
    def test_primes(self) -> None:
        numbers = [*range(2000), *range(LOW, LOW + 400), *range(HIGH - 400, HIGH)]
        assert [n for n in numbers if is_prime(n)] == [n for n in numbers if sympy.isprime(n)]
        generator = np.random.default_rng(0)
        assert all(LOW <= p < HIGH and sympy.isprime(p) for p in (draw_prime(generator) for _ in range(20)))

    def test_number_of_primes(self) -> None:
        """The prime number theorem for arithmetic's sake: the constant lies within 0.01 % of li(2^31) - li(2^30)."""
        estimate = float(sympy.li(HIGH).evalf() - sympy.li(LOW).evalf())
        assert abs(PRIMES / estimate - 1) < 1e-4

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("chunk", [1, 2, 3])
    def test_measures_bound_the_polynomials(self, name: str, chunk: int) -> None:
        """Degree and sum of absolute coefficients of the true output polynomials are at most what is claimed."""
        op = spec(name)
        form = derivation(name).chosen
        sizes = {"1": 1, "C": chunk, "K": 2, "V": 2}
        claimed = measure((form.output, form.state), {}, sizes)
        names = {n: [sizes[d] for d in node.shape] for n, node in chunk_inputs(op).items()}
        symbols = [f"{n}_{i}_{j}" for n, (rows, columns) in names.items() for i in range(rows) for j in range(columns)]
        _, *generators = sympy.ring(symbols, sympy.ZZ)
        env = {}
        for n, (rows, columns) in names.items():
            taken, generators = generators[: rows * columns], generators[rows * columns :]
            env[n] = np.array(taken, dtype=object).reshape(rows, columns)
        values = evaluate((form.output, form.state), env, chunk, Polynomials(), sizes=sizes)
        for claim, value in zip(claimed, values, strict=True):
            for entry in value.ravel():
                assert max(sum(monomial) for monomial in entry.monoms()) <= claim.degree
                assert sum(abs(int(c)) for c in entry.coeffs()) <= 2**claim.bits * (1 + 1e-9)

    def test_recurrence_counts_too(self) -> None:
        op = spec("gated_delta_rule")
        sizes = {"1": 1, "C": 8, "K": 2, "V": 2}
        output, state = measure(build_recurrence(op), {}, sizes)
        difference = difference_measure(op, build_form(op), sizes)
        assert difference.degree >= max(output.degree, state.degree) + 7
        assert 0 < failure_probability(difference) < 1e-4

    def test_log_sum(self) -> None:
        assert log_sum([0.0, 0.0]) == 1.0
        assert log_sum([5000.0, 0.0]) == 5000.0
        assert log_sum([]) == 0.0

    def test_probability(self) -> None:
        assert failure_probability(Measure(1 << 20, 0.0)) == pytest.approx(2.0**-10)
        assert failure_probability(Measure(0, 30.0)) == pytest.approx(1 / PRIMES)


class TestSolve:
    @pytest.mark.parametrize("seed", range(10))
    def test_consistent_systems_are_solved(self, seed: int) -> None:
        generator, prime = np.random.default_rng(seed), 2147483629
        matrix = generator.integers(0, prime, (7, 4))
        matrix[:, 3] = (matrix[:, 0] + 5 * matrix[:, 1]) % prime  # a free unknown
        unknown = generator.integers(0, prime, 4).astype(object)
        target = np.array((matrix.astype(object) @ unknown) % prime, dtype=np.int64)
        found = solve_modular(matrix, target, prime)
        assert found is not None
        assert np.array_equal((matrix.astype(object) @ found.astype(object)) % prime, target)

    def test_inconsistent_systems_have_no_solution(self) -> None:
        matrix = np.array([[1, 2], [2, 4]])
        assert solve_modular(matrix, np.array([1, 3]), 101) is None
