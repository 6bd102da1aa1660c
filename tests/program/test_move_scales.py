"""Scales that move into handed-over tensors: where they do, where they may not, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qlagen.algebra.derive import derive
from qlagen.algebra.ir import input_node, multiply, topological, transpose
from qlagen.program.check import check_plan
from qlagen.program.ir import Elementwise, Gemm, Inverse, Load, Operation, Program, Ref
from qlagen.program.kernel_form import kernel_form
from qlagen.program.move_scales import Move, find_moves, read_scaled, store_scaled
from qlagen.program.plan import build_plan, plan_programs, segment_programs
from qlagen.spec.model import OpSpec
from qlagen.verify.problem import recurrence_of
from qlagen.verify.reference import run
from tests.algebra.operators import derivation
from tests.algebra.operators import spec as load
from tests.program.examples import BETA, DIMS, A, mul, rows
from tests.program.forms import draw_inputs, evaluate_form
from tests.program.interpret import run_plan, run_program

SIZES = dict(DIMS)
MOVE = Move(A, BETA)
SCALED = ("gated_delta_rule", "delta_rule", "comba", "kda")
NOT_SCALED = ("gdn2", "rwkv7", "simple_gla", "mamba2")


def wide_spec(name: str) -> OpSpec:
    """So many columns of V that moving a scale pays with a chunk of 8."""
    sizes = dict(load(name).dims)
    return load(name, (f"K = {sizes['K']}", "K = 5"), (f"V = {sizes['V']}", "V = 11"))


def inverse(program: Program) -> Inverse:
    return next(o for o in program.operations if isinstance(o, Inverse))


def loads(program: Program) -> set[str]:
    return {o.tensor.name for o in program.operations if isinstance(o, Load)}


@pytest.mark.parametrize("name", SCALED)
def test_the_scale_is_in_the_tensor(name: str) -> None:
    prepare, forward = plan_programs(derivation(name)).programs
    assert inverse(prepare).columns == "beta"
    assert "beta" in loads(prepare)
    assert "beta" not in loads(forward)


@pytest.mark.parametrize("name", NOT_SCALED)
def test_nothing_to_move(name: str) -> None:
    programs = plan_programs(derivation(name)).programs
    assert all(o.columns is None for p in programs for o in p.operations if isinstance(o, Inverse))


@pytest.mark.parametrize("name", SCALED)
def test_it_computes_the_recurrence(name: str) -> None:
    spec = wide_spec(name)
    arrays, state = draw_inputs(spec, 21)
    heads = {n: a if a.ndim == 0 else a[None, :, None] for n, a in arrays.items()}
    output, final = run(recurrence_of(spec), heads, initial_state=state[None, None])
    plan = plan_programs(derive(spec, chunk=8))
    assert inverse(plan.programs[0]).columns is not None
    got, carried = run_plan(plan, arrays, state)
    np.testing.assert_allclose(got, output[0, :, 0], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(carried, final[0, 0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["gated_delta_rule", "delta_rule"])
def test_segments_make_the_same_state(name: str) -> None:
    spec = wide_spec(name)
    derived = derive(spec, chunk=8)
    prepare, forward = plan_programs(derived).programs
    forms = segment_programs(derived)
    assert len(forms) >= 2
    arrays, state = draw_inputs(spec, 8)
    sizes = {"C": 8, **dict(spec.dims)}
    made = run_program(prepare, arrays, state, sizes)
    memory = {**arrays, **{store.tensor.name: made[store.value] for store in prepare.stores}}
    assert forward.carry is not None
    wanted = run_program(forward, memory, state, sizes)[forward.carry.next]
    for form in forms:
        assert "beta" not in loads(form)
        assert form.carry is not None
        got = run_program(form, memory, state, sizes)[form.carry.next]
        np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-12)


# Where a scale stays


def unscaled(name: str = "gated_delta_rule") -> tuple[Program, Program]:
    """The programs as they would be without the move."""
    prepare, forward = build_plan(derivation(name)).programs
    bare = replace(inverse(prepare), columns=None)
    operations = tuple(bare if isinstance(o, Inverse) else o for o in prepare.operations)
    scaled = [
        replace(o, expr=mul(o.expr, rows("beta"))) if isinstance(o, Elementwise) and o.name == "Vn_right" else o
        for o in forward.operations
    ]
    return replace(prepare, operations=operations), replace(forward, operations=(Load("beta", BETA), *scaled))


def test_what_is_moved() -> None:
    prepare, forward = unscaled()
    assert find_moves(prepare, forward, SIZES) == (MOVE,)
    read, stored = read_scaled(forward, MOVE), store_scaled(prepare, MOVE)
    assert read is not None
    assert stored is not None
    assert read == build_plan(derivation("gated_delta_rule")).programs[1]
    assert inverse(stored).columns == "beta"


def test_it_must_pay() -> None:
    assert find_moves(*unscaled(), {**SIZES, "V": SIZES["C"]}) == ()


def with_last(program: Program, *new: Operation) -> Program:
    return replace(program, operations=(*program.operations, *new))


def exchanged(program: Program, new: Operation) -> Program:
    return replace(program, operations=tuple(new if o.name == new.name else o for o in program.operations))


OTHER_USES: dict[str, Operation] = {
    "a product without the scale": Gemm("x", "a", "v"),
    "its transpose": Gemm("x", "a", "Vn_right", transpose_left=True),
    "columns of a result that nothing scales": Gemm("x", "k", "a", transpose_left=True),
    "entry by entry with itself": Elementwise("x", mul(Ref("a"), Ref("a"))),
    "the scaled operand somewhere else": Gemm("x", "k", "Vn_right", transpose_left=True),
}


@pytest.mark.parametrize("use", OTHER_USES)
def test_every_use_must_give_up_the_scale(use: str) -> None:
    prepare, forward = unscaled()
    forward = with_last(forward, OTHER_USES[use])
    assert read_scaled(forward, MOVE) is None
    assert find_moves(prepare, forward, SIZES) == ()


def test_a_scale_inside_a_sum_stays() -> None:
    prepare, forward = unscaled()
    right = next(o for o in forward.operations if o.name == "Vn_right")
    assert isinstance(right, Elementwise)
    inside = replace(right, expr=mul(mul(Ref("k_S"), Ref("v")), rows("g_from_start")))
    assert find_moves(prepare, exchanged(forward, inside), SIZES) == ()


def test_what_is_read_where_it_is_made_is_not_scaled() -> None:
    prepare, forward = unscaled()
    prepare = with_last(prepare, Gemm("x", inverse(prepare).name, "k"))
    assert store_scaled(prepare, MOVE) is None
    assert find_moves(prepare, forward, SIZES) == ()


def test_an_operand_that_was_only_scaled_is_read_as_it_is() -> None:
    forward = unscaled()[1]
    right = next(o for o in forward.operations if o.name == "Vn_right")
    assert isinstance(right, Elementwise)
    read = read_scaled(exchanged(forward, replace(right, expr=mul(Ref("v"), rows("beta")))), MOVE)
    assert read is not None
    product = next(o for o in read.operations if o.name == "Vn")
    assert isinstance(product, Gemm)
    assert product.right == "v"
    assert "Vn_right" not in {o.name for o in read.operations}


def test_plans_stay_well_formed() -> None:
    for name in SCALED[:2]:
        check_plan(build_plan(derivation(name)))


# The form of the kernels


@pytest.mark.parametrize("name", SCALED)
def test_the_form_of_the_kernels_has_the_scale_there_too(name: str) -> None:
    derived = derivation(name)
    form = kernel_form(derived)
    stages = dict(form.stages)
    scaled = multiply(stages["A"], transpose(input_node("beta", ("C", "1"))))
    assert [node.args[0] for node in topological((form.output, form.state)) if scaled in node.args] == [scaled]
    spec = wide_spec(name)
    arrays, state = draw_inputs(spec, 8)
    small = derive(spec, chunk=8)
    for got, wanted in zip(
        evaluate_form(spec, kernel_form(small), arrays, state),
        evaluate_form(spec, small.chosen, arrays, state),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", NOT_SCALED)
def test_it_is_the_chosen_form_where_nothing_moves(name: str) -> None:
    assert kernel_form(derivation(name)) == derivation(name).chosen
