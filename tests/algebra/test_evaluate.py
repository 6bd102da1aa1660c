"""The fields: exact products, agreement of floats with the recurrence, and roundings of operands and stored values."""

from __future__ import annotations

import numpy as np
import pytest

from qlagen.algebra import ir
from qlagen.algebra.build import chunk_inputs
from qlagen.algebra.evaluate import evaluate
from qlagen.algebra.fields import Array, Float64, PrimeField, round_bfloat16, round_float16
from qlagen.algebra.trial import Point, draw_point, run_form, run_recurrence

from .operators import NAMES, chunk_values, derivation, spec

PRIME = 2147483629
SIZES = {"1": 1, "C": 64, "K": 32, "V": 16}


@pytest.mark.parametrize("inner", [1, 7, 300])
def test_prime_field_products_are_exact(inner: int) -> None:
    generator = np.random.default_rng(inner)
    left, right = generator.integers(PRIME - 9, PRIME, (5, inner)), generator.integers(PRIME - 9, PRIME, (inner, 4))
    exact = (left.astype(object) @ right.astype(object)) % PRIME
    assert np.array_equal(PrimeField(PRIME).matmul(left, right), exact.astype(np.int64))


def test_prime_field_gates_are_products_of_decays() -> None:
    op, field = spec("simple_gla"), PrimeField(PRIME)
    point = draw_point(op, {"1": 1, "C": 5, "K": 2, "V": 2}, PRIME, np.random.default_rng(0))
    decays = [int(a) for a in point.decays["G"][:, 0]]
    gate = point.values["G"]
    for i in range(5):
        for j in range(5):
            product = 1 if i >= j else 0
            for a in decays[j + 1 : i + 1]:
                product = product * a % PRIME
            assert field.decay(gate)[i, j] == product
    assert field.total(gate)[0, 0] == field.from_start(gate)[-1, 0]
    assert np.array_equal(field.to_end(gate)[:, 0], field.decay(gate)[-1])


@pytest.mark.parametrize("name", NAMES)
def test_floats_agree_with_the_recurrence(name: str) -> None:
    op, form = spec(name), derivation(name).chosen
    values = chunk_values(op, SIZES)
    steps = {n: np.diff(values[n], axis=0, prepend=0) for n in values if n == "G"}
    point = Point(values, {n: np.exp(g) for n, g in steps.items()})
    want = run_recurrence(op, point, SIZES, Float64())
    have = run_form(form, point, SIZES, Float64())
    for a, b in zip(want, have, strict=True):
        assert np.linalg.norm(a - b) < 1e-13 * np.linalg.norm(a)


class TestRounding:
    def test_bfloat16(self) -> None:
        exact = np.array([1.0, -0.5, 2.0**-20, 3.0, 0.0])
        assert np.array_equal(round_bfloat16(exact), exact)
        step = 2.0**-7
        given = np.array([1 + step / 2, 1 + 3 * step / 2, 1 + 0.51 * step, -1 - step / 2])
        assert np.array_equal(round_bfloat16(given), [1.0, 1 + 2 * step, 1 + step, -1.0])  # ties go to even

    def test_float16(self) -> None:
        assert np.array_equal(round_float16(np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11])), [1.0, 1 + 2.0**-9])

    def test_operands_are_rounded_and_the_rest_is_not(self) -> None:
        op, form = spec("gated_delta_rule"), derivation("gated_delta_rule").chosen
        values = chunk_values(op, SIZES)
        exact = evaluate((form.output,), values, 64, Float64())[0]
        for rounding, low, high in ((round_bfloat16, 1e-3, 8e-3), (round_float16, 1e-4, 1e-3)):
            rounded = evaluate((form.output,), values, 64, Float64(round_operand=rounding))[0]
            assert low < np.linalg.norm(rounded - exact) / np.linalg.norm(exact) < high
        without = ir.multiply(ir.input_node("beta", ("C", "1")), ir.input_node("V", ("C", "V")))
        plain, same = (evaluate((without,), values, 64, f)[0] for f in (Float64(), Float64(round_bfloat16)))
        assert np.array_equal(plain, same)

    def test_stored_values_are_rounded(self) -> None:
        values = {"V": np.array([[1 + 2.0**-10]])}
        doubled = ir.linear(((2, ir.input_node("V", ("C", "V"))),))
        (kept,) = evaluate((doubled,), values, 1, Float64(), stored=(doubled,), round_stored=round_bfloat16)
        assert kept[0, 0] == 2.0

    def test_beta_belongs_on_the_side_of_the_values(self) -> None:
        """Folding beta into a rounded A costs accuracy: that is why a unit diagonal counts in the bill."""
        inputs = chunk_inputs(spec("gated_delta_rule"))
        stages = dict(derivation("gated_delta_rule").chosen.stages)
        beside = stages["Vn"]
        assert beside.op == "matmul"
        inverse, scaled = beside.args
        (rest,) = (f for f in scaled.args if f.op == "add")
        folded = ir.matmul(ir.multiply(inverse, ir.transpose(inputs["beta"])), rest)
        errors: dict[ir.Node, list[float]] = {beside: [], folded: []}
        for seed in range(12):
            values = chunk_values(spec("gated_delta_rule"), SIZES, seed)
            values = {n: round_bfloat16(v) if n in "QKV" else v for n, v in values.items()}
            for node, found in errors.items():
                found.append(_error(node, values))
        assert np.mean(errors[folded]) > 1.02 * np.mean(errors[beside])


def _error(node: ir.Node, values: dict[str, Array]) -> float:
    exact, rounded = (evaluate((node,), values, 64, f)[0] for f in (Float64(), Float64(round_bfloat16)))
    return float(np.linalg.norm(rounded - exact) / np.linalg.norm(exact))
