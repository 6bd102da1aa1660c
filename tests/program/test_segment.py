"""Programs that make the map of a segment: what they are made of, and when V is a batch dimension."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qlagen.program.ir import Apply, Elementwise, Gemm, Load, Number, Operation, Program, Ref, Scan, Tensor
from qlagen.program.plan import build_plan
from qlagen.program.segment import batch_obstacle
from tests.algebra.operators import derivation
from tests.program.interpret import run_program

NAMES = ("gated_delta_rule", "delta_rule", "simple_gla", "mamba2")
SIZES = {"C": 4, "K": 3, "V": 3}
"""As many values as keys: a map fits the state."""


def forms(name: str) -> tuple[Program, ...]:
    return build_plan(derivation(name)).segment_forms


@pytest.mark.parametrize(
    ("name", "count"), [("gated_delta_rule", 2), ("delta_rule", 2), ("simple_gla", 1), ("mamba2", 1)]
)
def test_forms(name: str, count: int) -> None:
    assert len(forms(name)) == count
    for form in forms(name):
        assert form.stores == ()
        assert "q" not in {o.tensor.name for o in form.operations if isinstance(o, Load)}
        assert form.segment is not None
        bound = form.segment.bound
        assert (None if bound is None else bound.name) == (None if name == "delta_rule" else "g_cum")
    assert forms("gated_delta_rule")[0].segment.condition == "0 <= beta |k|^2 <= 2"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", NAMES)
def test_a_walk_from_the_identity_without_values_gives_the_map(name: str) -> None:
    random = np.random.default_rng(0)
    for form in forms(name):
        memory = {}
        for load in (o for o in form.operations if isinstance(o, Load)):
            values = random.standard_normal([SIZES[d] for d in load.tensor.dims])
            memory[load.tensor.name] = -np.cumsum(np.abs(values)) if load.tensor.name == "g_cum" else values
        assert form.carry is not None
        state, none = random.standard_normal((3, 3)), {**memory, "v": np.zeros((4, 3))}

        def after(own: dict[str, np.ndarray], start: np.ndarray, form: Program = form) -> np.ndarray:
            return run_program(form, own, start, SIZES)[form.carry.next]  # type: ignore[union-attr]

        joined = after(none, np.eye(3)) @ state + after(memory, np.zeros((3, 3)))
        np.testing.assert_allclose(joined, after(memory, state), rtol=1e-12, atol=1e-12)


V = Tensor("v", ("C", "V"), "data", "value", "token")
EXTRA: dict[str, tuple[Operation, ...]] = {
    "a constant": (Elementwise("x", Apply("add", Ref("v"), Number(1))),),
    "a square": (Elementwise("x", Apply("mul", Ref("v"), Ref("v"))),),
    "a sum of unlike terms": (Elementwise("x", Apply("add", Ref("v"), Apply("mul", Ref("v"), Ref("v")))),),
    "a product over the columns": (Gemm("x", "v", "v", transpose_right=True),),
    "a product from the right": (Gemm("y", "v", "v", transpose_left=True), Gemm("x", "v", "y")),
    "a sum along the rows": (Scan("x", "v"),),
    "a square of the state": (Elementwise("x", Apply("mul", Ref("S"), Ref("S"))),),
}


@pytest.mark.parametrize("name", EXTRA)
def test_columns_that_meet_are_found(name: str) -> None:
    form = forms("delta_rule")[0]
    assert batch_obstacle(form) == ""
    changed = replace(form, operations=(*form.operations, *EXTRA[name]))
    found = next(o.name for o in EXTRA[name])
    assert batch_obstacle(changed) == f"{found} is not linear in each column of V by itself"
