"""Ill-formed programs are refused, each with what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from qlagen.errors import QlagenError
from qlagen.program.check import check_plan, check_program
from qlagen.program.dims import infer_dims
from qlagen.program.ir import (
    Carry,
    Elementwise,
    Gate,
    GatedDot,
    Gemm,
    Inverse,
    Load,
    Number,
    Operation,
    Plan,
    Program,
    Ref,
    Rows,
    Scan,
    Store,
    Tensor,
)
from tests.program.examples import PLANS, everywhere, gated_delta_rule, mul, rows

PREPARE, FORWARD = gated_delta_rule().programs


def with_operation(program: Program, name: str, new: Operation | None) -> Program:
    """One operation exchanged or taken out."""
    kept = [new if o.name == name else o for o in program.operations]
    return replace(program, operations=tuple(o for o in kept if o is not None))


def with_last(program: Program, *new: Operation) -> Program:
    return replace(program, operations=(*program.operations, *new))


@pytest.mark.parametrize("name", PLANS)
def test_the_examples_are_well_formed(name: str) -> None:
    check_plan(PLANS[name])


def test_dims() -> None:
    dims = infer_dims(FORWARD)
    assert list(dims)[:4] == ["scale", "S", "q", "k"]
    for name, wanted in {
        "scale": (),
        "S": ("K", "V"),
        "g_cum": ("C",),
        "g_total": (),
        "g_decay": ("C", "C"),
        "k_S": ("C", "V"),
        "q_k": ("C", "C"),
        "O_scale": ("C",),
        "S1_base": ("K", "V"),
        "S1": ("K", "V"),
    }.items():
        assert dims[name] == wanted, name


def test_an_outer_product_takes_its_shape_from_two_vectors() -> None:
    columns = Ref("g", "columns")
    program = with_last(PREPARE, Elementwise("x", mul(Number(2), rows("beta"), columns)))
    assert infer_dims(program)["x"] == ("C", "C")


STATE_STORE = Store(Tensor("x", ("K", "V"), "float32", "value", "chunk"), "O")
BAD: dict[str, tuple[Callable[[], Program], str]] = {
    "twice": (lambda: with_last(PREPARE, Scan("G", "g")), "G is defined twice"),
    "a scalar's name": (lambda: with_last(FORWARD, Scan("scale", "g_cum")), "scale is defined twice"),
    "undefined": (lambda: with_operation(FORWARD, "k_S", None), "Vn_right uses k_S, which is not defined before it"),
    "scan": (lambda: with_last(FORWARD, Scan("sum", "scale")), "sum: needs [C], but scale is []"),
    "gated product": (
        lambda: with_last(FORWARD, GatedDot("dot", "q", "v", "g_cum")),
        "dot: needs [C, K], but v is [C, V]",
    ),
    "rows": (lambda: with_last(FORWARD, Rows("rows", "S", "last")), "rows: needs [C, V], but S is [K, V]"),
    "inverse": (
        lambda: with_operation(PREPARE, "A_beta", Inverse("A_beta", "k")),
        "A_beta: needs [C, C], but k is [C, K]",
    ),
    "columns of an inverse": (
        lambda: with_operation(PREPARE, "A_beta", Inverse("A_beta", "A_source", columns="k")),
        "A_beta: needs [C], but k is [C, K]",
    ),
    "gate": (lambda: with_operation(PREPARE, "g_decay", Gate("g_decay", None, "decay")), "decay gate needs a source"),
    "mask": (lambda: with_operation(PREPARE, "strict", Gate("strict", "G", "strict")), "strict mask has no source"),
    "gate of a matrix": (
        lambda: with_operation(PREPARE, "g_decay", Gate("g_decay", "k", "decay")),
        "g_decay: needs [C], but k is [C, K]",
    ),
    "inner": (lambda: with_operation(FORWARD, "q_S", Gemm("q_S", "k", "v")), "q_S: cannot multiply [C, K] with [C, V]"),
    "vector": (lambda: with_operation(FORWARD, "q_S", Gemm("q_S", "q", "g_cum")), "both must be matrices"),
    "add": (
        lambda: with_operation(FORWARD, "q_S", Gemm("q_S", "q", "S", add="S")),
        "q_S: adds S [K, V] to [C, V]",
    ),
    "elementwise": (
        lambda: with_operation(FORWARD, "O_base", Elementwise("O_base", mul(Ref("q_S"), Ref("k")))),
        "O_base: k [C, K] does not fit [C, V]",
    ),
    "along": (
        lambda: with_operation(FORWARD, "O_base", Elementwise("O_base", mul(Ref("q_S"), Ref("O_scale", "columns")))),
        "O_base: O_scale [C] along columns does not fit [C, V]",
    ),
    "rows of a vector": (
        lambda: with_operation(FORWARD, "O_scale", Elementwise("O_scale", mul(Ref("g_cum"), rows("g_from_start")))),
        "O_scale: g_from_start [C] along rows does not fit [C]",
    ),
    "shapeless": (
        lambda: with_operation(FORWARD, "O_base", Elementwise("O_base", mul(rows("O_scale"), everywhere("scale")))),
        "O_base: nothing gives it its shape",
    ),
    "a constant": (lambda: with_operation(FORWARD, "O_base", Elementwise("O_base", Number(1))), "gives it its shape"),
    "carry shape": (
        lambda: replace(FORWARD, carry=Carry("S", ("K", "V"), "O")),
        "the carry S [K, V] becomes O [C, V]",
    ),
    "carry next": (lambda: replace(FORWARD, carry=Carry("S", ("K", "V"), "S")), "next value S is not computed"),
    "carry unused": (
        lambda: Program(
            "p",
            "x",
            Carry("S", ("C", "K"), "k_2"),
            (PREPARE.operations[0], Elementwise("k_2", mul(Number(2), Ref("k")))),
            (),
        ),
        "the carry S is never used",
    ),
    "no stores": (lambda: replace(PREPARE, stores=()), "it stores nothing"),
    "store undefined": (
        lambda: replace(PREPARE, stores=(replace(PREPARE.stores[0], value="B"),)),
        "it stores B, which is not defined",
    ),
    "store shape": (lambda: replace(FORWARD, stores=(STATE_STORE,)), "O [C, V] is stored as x [K, V]"),
    "token axis": (
        lambda: with_operation(FORWARD, "q", Load("q", Tensor("q", ("K", "C"), "data", "key", "token"))),
        "cannot multiply [K, C]",
    ),
    "no token axis": (
        lambda: Program(
            "p",
            "x",
            None,
            (Load("w", Tensor("w", ("K", "V"), "data", "key", "token")),),
            (Store(Tensor("o", ("K", "V"), "data", "key", "chunk"), "w"),),
        ),
        "w [K, V] has no token axis",
    ),
    "no triangle": (
        lambda: with_operation(FORWARD, "q", Load("q", Tensor("q", ("C", "K"), "data", "key", "chunk", lower=True))),
        "q [C, K] has no triangle to be packed",
    ),
    "tensor twice": (
        lambda: replace(
            with_operation(FORWARD, "q", Load("q", PREPARE.operations[0].tensor)),  # type: ignore[union-attr]
        ),
        "the tensor k is used by more than one load or store",
    ),
    "dead": (lambda: with_last(FORWARD, Gemm("x", "q", "S")), "x is never used"),
    "dead scalar": (lambda: replace(PREPARE, scalars=("scale",)), "scale is never used"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_programs(case: str) -> None:
    make, part = BAD[case]
    with pytest.raises(QlagenError) as caught:
        check_program(make())
    assert caught.value.code == "E-PROGRAM"
    assert part in caught.value.message


def test_a_chunk_tensor_is_stored_before_it_is_loaded() -> None:
    plan = gated_delta_rule()
    with pytest.raises(QlagenError, match=r"a loads a, which no earlier program stores"):
        check_plan(replace(plan, programs=plan.programs[1:]))
    with pytest.raises(QlagenError, match=r"a loads a, which no earlier program stores"):
        check_plan(replace(plan, programs=plan.programs[::-1]))


def test_every_dimension_has_a_size() -> None:
    plan: Plan = gated_delta_rule()
    with pytest.raises(QlagenError, match=r"the dimension V, which has no size"):
        check_plan(replace(plan, dims=plan.dims[:2]))
