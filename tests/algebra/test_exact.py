"""Second proofs: polynomials at small sizes, and the exponents of the decay atoms."""

from __future__ import annotations

import pytest

from qlagen.algebra.build import build_form
from qlagen.algebra.exact import equals_recurrence, holds, is_safe
from qlagen.algebra.gates import EXPONENTS, IDENTITIES, GateIdentity

from .operators import NAMES, derivation, spec


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", NAMES)
def test_both_forms_are_the_recurrence_as_polynomials(name: str, chunk: int) -> None:
    for form in (build_form(spec(name)), derivation(name).chosen):
        assert equals_recurrence(spec(name), form, chunk=chunk)


@pytest.mark.parametrize(
    ("old", "new", "chunk"),
    [
        ("U - W @ S", "U + W @ S", 1),
        ("beta * (K @ K^T) * decay(G)", "beta * (K @ K^T)", 2),
        ("to_end(G) * Vn", "Vn", 2),
        ("A @ (beta * V)", "beta * (A @ V)", 2),
    ],
)
def test_wrong_stages_are_not(old: str, new: str, chunk: int) -> None:
    op = spec("gated_delta_rule", (old, new))
    assert not equals_recurrence(op, build_form(op), chunk=chunk)


@pytest.mark.parametrize("identity", IDENTITIES, ids=lambda i: i.name)
def test_gate_identities_hold(identity: GateIdentity) -> None:
    assert holds(identity)


def test_false_identities_do_not() -> None:
    assert not holds(GateIdentity("wrong side", ("decay", "to_end_row"), ("to_end_row",)))
    assert not holds(GateIdentity("wrong gate", ("decay", "from_start_row"), ("from_start_row",)))
    assert not holds(GateIdentity("square", ("decay", "decay"), ("decay",)))


def test_every_atom_has_an_exponent_of_at_most_zero() -> None:
    assert all(is_safe(atom) for atom in EXPONENTS)


def test_an_unsafe_exponent_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXPONENTS, "decay", (-1, 1, 0))
    assert not is_safe("decay")
