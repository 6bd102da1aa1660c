"""Plans equal to the ones written by hand, and plans of edited specs run on numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qlagen.algebra.derive import derive
from qlagen.errors import QlagenError
from qlagen.program.ir import Elementwise, Gate, Gemm, Inverse, Load, Scan
from qlagen.program.plan import build_plan, plan_programs
from qlagen.program.show import show_program
from qlagen.verify.problem import recurrence_of
from qlagen.verify.reference import run
from tests.algebra.operators import FAMILY, NAMES, derivation
from tests.program.examples import PLANS
from tests.program.forms import check_one_chunk, draw_inputs, small_spec, written
from tests.program.interpret import run_plan

GOLDEN = Path(__file__).parent / "golden"
NO_BETA_IN_U = (
    ('U  = "A @ (beta * V)"', 'U  = "A @ V"'),
    ('update  = "beta * (v - decayed^T @ k)"', 'update  = "v - beta * (decayed^T @ k)"'),
)


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_is_the_one_written_by_hand(name: str) -> None:
    assert build_plan(derivation(name)).programs == PLANS[name].programs


@pytest.mark.parametrize("name", NAMES)
def test_text(name: str, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN / f"{name}.txt", show_program(build_plan(derivation(name))))


@pytest.mark.parametrize(
    ("name", "edits"), [*((name, ()) for name in NAMES), ("gated_delta_rule", NO_BETA_IN_U)], ids=[*NAMES, "edited"]
)
@pytest.mark.parametrize("form", ["chosen", "textbook"])
def test_it_computes_the_recurrence(name: str, edits: tuple[tuple[str, str], ...], form: str) -> None:
    spec = small_spec(name, *edits)
    derived = derive(spec, chunk=8)
    derived = derived if form == "chosen" else replace(derived, chosen=derived.textbook)
    arrays, state = draw_inputs(spec, 21)
    heads = {n: a if a.ndim == 0 else a[None, :, None] for n, a in arrays.items()}
    output, final = run(recurrence_of(spec), heads, initial_state=state[None, None])
    got, carried = run_plan(build_plan(derived), arrays, state)
    np.testing.assert_allclose(got, output[0, :, 0], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(carried, final[0, 0], rtol=1e-9, atol=1e-11)


def test_an_edited_stage_changes_the_program() -> None:
    plan = build_plan(derivation("gated_delta_rule", *NO_BETA_IN_U))
    assert "(v - k_S * Vn_scale[:, None])" not in show_program(plan)
    assert plan.programs[1] != PLANS["gated_delta_rule"].programs[1]
    assert "v - k_S * Vn_scale[:, None]" in show_program(plan)
    assert "Vn_scale [C] = beta * g_from_start" in show_program(plan)


def test_sizes_are_the_specs() -> None:
    plan = build_plan(derive(small_spec("delta_rule"), chunk=16))
    assert plan.dims == (("C", 16), ("K", 5), ("V", 3))


def test_without_gates_and_inverses_nothing_is_prepared() -> None:
    edits = (
        ('S_next = "a * S + k @ v^T"', 'S_next = "S + k @ v^T"'),
        ('"scale * (from_start(G) * Q @ S + (Q @ K^T) * decay(G) @ V)"', '"scale * (Q @ S + tril(Q @ K^T) @ V)"'),
        ('"total(G) * S + K^T @ (to_end(G) * V)"', '"S + K^T @ V"'),
        (
            'g     = { shape = [], heads = "Hv", dtype = "float32", role = "log_gate", range = "<=0", decay = "a" }\n',
            "",
        ),
        ('"v", "g", "S"', '"v", "S"'),
    )
    plan = build_plan(derive(small_spec("simple_gla", *edits), chunk=8))
    (forward,) = plan.programs
    assert [type(o) for o in forward.operations] == [Load, Load, Load, Gate, *[Gemm, Elementwise] * 2, Gemm, Gemm]
    assert forward.operations[-1] == Gemm("S1", "k", "v", transpose_left=True, add="S", origin="S1")


STAGES = {
    "numbers in both terms": {"O": "scale * (Q @ S) + scale * (tril(Q @ K^T) @ Vn) + 0 * scale * (beta * V)"},
    "a number times a sum that is not accumulated": {"O": "scale * (beta * V - Q @ S) + 2 * Vn"},
    "a negative sum": {"Vn": "-(A @ (V + beta * (K @ S)))"},
    "an inverse of a negative": {"A": "inv_unit_lower(-stril(beta * (K @ K^T)))"},
    "an inverse times a vector": {"A": "inv_unit_lower(stril(K @ K^T)) * beta^T"},
    "an inverse and its transpose": {"Vn": "A @ (V - K @ S) + A^T @ (beta * V)"},
    "two inverses": {"A": "inv_unit_lower(stril(K @ K^T)) @ inv_unit_lower(stril(beta * (K @ K^T)))"},
    "transposed operands": {"S1": "S + (Vn^T @ K)^T"},
    "transposed factors": {"S1": "S + ((beta * K) * (Q @ K^T @ K))^T @ Vn"},
    "columns scaled": {"O": "scale * (Q @ S + (tril(Q @ K^T) * beta^T) @ Vn)"},
    "the next state is read out": {"S1": "S + K^T @ Vn", "O": "scale * (Q @ S1)"},
    "both states are read out": {"S1": "S + K^T @ Vn", "O": "scale * (Q @ S1 + Q @ S)"},
    "the old state is read after the next": {"S1": "S + K^T @ Vn", "O": "scale * (((Q @ S1) @ S^T) @ S)"},
    "a product scaled and shared": {"P": "tril(Q @ K^T)", "O": "scale * (Q @ S + P @ Vn) + P @ V"},
    "a named product that is scaled": {"P": "tril(Q @ K^T)", "O": "scale * (Q @ S + P @ Vn)"},
    "a product with nothing to scale": {"O": "scale * (Q @ S + (Q @ K^T) @ Vn)"},
    "products without a base": {"O": "Q @ (scale * S) + tril(Q @ K^T) @ Vn"},
    "three products": {"O": "(beta * Q) @ S + tril(Q @ K^T) @ Vn + tril(K @ Q^T) @ (scale * V)"},
    "a loaded base": {"O": "V + tril(Q @ K^T) @ (scale * Vn) "},
    "a square of the state": {"O": "scale * (Q @ S) * (K @ S) + V"},
    "many coefficients": {"O": "3 * V - 2 * (scale * (Q @ S)) - 4 * (tril(Q @ K^T) @ Vn)"},
    "a stage of a vector": {"b": "scale * beta", "O": "b * (Q @ S) + Vn * b"},
}
ORDER = ("A", "W", "U", "Vn", "P", "b", "O", "S1")


def edited_stages(changes: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """The delta rule's stages with some exchanged, the state's before the output's if the output needs it."""
    old = (
        'A  = "inv_unit_lower(stril(beta * (K @ K^T)))"\nW  = "A @ (beta * K)"\n'
        'U  = "A @ (beta * V)"\nVn = "U - W @ S"\n'
        'O  = "scale * (Q @ S + tril(Q @ K^T) @ Vn)"\nS1 = "S + K^T @ Vn"\n'
    )
    stages = {
        "A": "inv_unit_lower(stril(beta * (K @ K^T)))",
        "Vn": "A @ (beta * (V - K @ S))",
        "O": "scale * (Q @ S + tril(Q @ K^T) @ Vn)",
        "S1": "S + K^T @ Vn",
    } | changes
    order = [*ORDER[:-2], "S1", "O"] if "S1" in stages["O"] else ORDER
    return ((old, "".join(f'{name} = "{stages[name]}"\n' for name in order if name in stages)),)


@pytest.mark.parametrize("case", STAGES)
def test_forms_as_written(case: str) -> None:
    check_one_chunk(written(small_spec("delta_rule", *edited_stages(STAGES[case]))))


def forward_text(case: str) -> str:
    return show_program(build_plan(written(small_spec("delta_rule", *edited_stages(STAGES[case]))))).split("forward")[1]


def test_a_state_that_is_read_again_is_copied_first() -> None:
    assert "S1 [K, V] = S + k^T @ Vn" in forward_text("the next state is read out")
    assert "S1 [K, V] = S + k^T @ Vn" in forward_text("both states are read out")
    text = forward_text("the old state is read after the next")
    assert "S1_base [K, V] = S " in text
    assert "S1 [K, V] = S1_base + k^T @ Vn" in text


def test_a_scaled_stage_keeps_its_name() -> None:
    assert "P [C, C] = q_k * lower * scale " in forward_text("a named product that is scaled")
    assert "O [C, V] = O_base + P @ Vn" in forward_text("a named product that is scaled")
    shared = forward_text("a product scaled and shared")
    assert "P [C, C] = q_k * lower " in shared
    assert "O_left [C, C] = P * scale" in shared or "q_k * lower * scale" in shared


def test_a_stage_that_is_a_scale_keeps_its_name() -> None:
    text = forward_text("a stage of a vector")
    assert "b [C] = beta * scale " in text
    assert "O [C, V] = q_S * b[:, None] + Vn * b[:, None]" in text


def test_a_shared_product_is_not_made_twice_for_a_number() -> None:
    assert forward_text("a loaded base").count("= a @ ") == 1


def test_parts_of_a_stage_are_named_after_it() -> None:
    text = show_program(build_plan(written(small_spec("delta_rule", *edited_stages(STAGES["two inverses"])))))
    assert "A_inverse_2 [C, C] = inv_unit_lower(A_source_2)  " in text
    assert "store a_inverse_ [C, C] (chunk layout, value heads, data, lower) = A_inverse_2" in text


def test_a_loaded_tensor_is_not_accumulated_onto() -> None:
    assert "V + " not in forward_text("a loaded base")
    assert "O [C, V] = v + " in forward_text("a loaded base")


def test_an_inverse_is_handed_over_once_for_both_orientations() -> None:
    text = forward_text("an inverse and its transpose")
    assert text.count("= load a ") == 1
    assert "a^T @ " in text


@pytest.mark.parametrize(
    ("changes", "stage", "part"),
    [
        ({"A": "inv_unit_lower(stril((K @ S) @ (K @ S)^T))"}, "A", "depends on the carried value S"),
        ({"O": "(Q @ (K^T @ beta)) * (scale * (Q @ S))"}, "O", "a matrix product with a vector"),
        ({"O": "beta * (V - V) * (scale * (Q @ S))"}, "O", "a matrix of zeros"),
        ({"Vn": "(A * A^T) @ (beta * (V - K @ S))"}, "Vn", "A meets the transpose of another matrix"),
    ],
)
def test_what_kernels_cannot_do(changes: dict[str, str], stage: str, part: str) -> None:
    with pytest.raises(QlagenError) as caught:
        build_plan(written(small_spec("delta_rule", *edited_stages(changes))))
    assert caught.value.code == "E-PROGRAM"
    assert f"no tile operations for stage {stage}: " in caught.value.message
    assert part in caught.value.message


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gla", "the log gate g has a value for each K channel"),
        ("kda", "the log gate g has a value for each K channel"),
        ("gdn2", "the log gate g has a value for each K channel"),
        ("rwkv7", "the log gate w has a value for each K channel"),
        ("comba", "stage A reads a gate before the token's own decay"),
        ("gated_delta_product", "a token has M steps"),
    ],
)
def test_what_only_the_portable_implementation_can_do(name: str, reason: str) -> None:
    derived = written(small_spec(name))
    with pytest.raises(QlagenError) as caught:
        build_plan(derived)
    assert caught.value.code == "E-UNSUPPORTED"
    assert caught.value.message == f"kernels cannot run this operator yet: {reason}"
    assert caught.value.span is not None
    assert plan_programs(derived).programs[-1].carry is not None


@pytest.mark.parametrize("name", FAMILY)
def test_programs_without_kernels_compute_the_recurrence(name: str) -> None:
    spec = small_spec(name)
    arrays, state = draw_inputs(spec, 21)
    heads = {n: a if a.ndim == 0 else a[None, :, None] for n, a in arrays.items()}
    output, final = run(recurrence_of(spec), heads, initial_state=state[None, None])
    got, carried = run_plan(plan_programs(written(spec)), arrays, state)
    np.testing.assert_allclose(got, output[0, :, 0], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(carried, final[0, 0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["kda", "comba", "gated_delta_product"])
def test_text_of_programs_without_kernels(name: str, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN / f"{name}.txt", show_program(plan_programs(written(small_spec(name)))))


def test_operations_are_of_their_kernels() -> None:
    prepare, forward = build_plan(derivation("gated_delta_rule")).programs
    assert not any(isinstance(o, Scan | Inverse) for o in forward.operations)
    assert [type(o) for o in prepare.operations if isinstance(o, Scan | Inverse)] == [Scan, Inverse]
