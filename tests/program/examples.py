"""Programs written by hand: what the program stage must make of the three specs, and what later stages test with."""

from __future__ import annotations

from qlagen.program.ir import (
    Apply,
    Carry,
    ElementExpr,
    Elementwise,
    Gate,
    Gemm,
    Inverse,
    Load,
    Plan,
    Program,
    Ref,
    Scan,
    Store,
    Tensor,
)

DIMS = (("C", 64), ("K", 128), ("V", 128))

Q = Tensor("q", ("C", "K"), "data", "key", "token")
K = Tensor("k", ("C", "K"), "data", "key", "token")
V = Tensor("v", ("C", "V"), "data", "value", "token")
G = Tensor("g", ("C",), "float32", "value", "token")
BETA = Tensor("beta", ("C",), "float32", "value", "token")
OUT = Tensor("o", ("C", "V"), "data", "value", "token")
A = Tensor("a", ("C", "C"), "data", "value", "chunk", lower=True)
G_CUM = Tensor("g_cum", ("C",), "float32", "value", "chunk")


def mul(left: ElementExpr, *others: ElementExpr) -> ElementExpr:
    for other in others:
        left = Apply("mul", left, other)
    return left


def sub(left: ElementExpr, right: ElementExpr) -> ElementExpr:
    return Apply("sub", left, right)


def rows(name: str) -> Ref:
    return Ref(name, "rows")


def everywhere(name: str) -> Ref:
    return Ref(name, "all")


def gated_delta_rule() -> Plan:
    prepare = Program(
        "prepare",
        "gated_delta_rule",
        None,
        (
            Load("k", K),
            Load("g", G),
            Load("beta", BETA),
            Scan("G", "g"),
            Gate("g_decay", "G", "decay", "A"),
            Gate("strict", None, "strict", "A"),
            Gemm("k_k", "k", "k", transpose_right=True, origin="A"),
            Elementwise("A_source", mul(Ref("k_k"), Ref("g_decay"), Ref("strict"), rows("beta")), "A"),
            Inverse("A_beta", "A_source", "A", "beta"),
        ),
        (Store(A, "A_beta"), Store(G_CUM, "G")),
    )
    forward = Program(
        "forward",
        "gated_delta_rule",
        Carry("S", ("K", "V"), "S1"),
        (
            Load("q", Q),
            Load("k", K),
            Load("v", V),
            Load("a", A, "A"),
            Load("g_cum", G_CUM),
            Gate("g_from_start", "g_cum", "from_start", "Vn"),
            Gate("g_decay", "g_cum", "decay", "O"),
            Gate("g_total", "g_cum", "total", "S1"),
            Gate("g_to_end", "g_cum", "to_end", "S1"),
            Gemm("k_S", "k", "S", origin="Vn"),
            Elementwise("Vn_right", sub(Ref("v"), mul(Ref("k_S"), rows("g_from_start"))), "Vn"),
            Gemm("Vn", "a", "Vn_right", origin="Vn"),
            Gemm("q_S", "q", "S", origin="O"),
            Elementwise("O_scale", mul(Ref("g_from_start"), everywhere("scale")), "O"),
            Elementwise("O_base", mul(Ref("q_S"), rows("O_scale")), "O"),
            Gemm("q_k", "q", "k", transpose_right=True, origin="O"),
            Elementwise("O_left", mul(Ref("q_k"), Ref("g_decay"), everywhere("scale")), "O"),
            Gemm("O", "O_left", "Vn", add="O_base", origin="O"),
            Elementwise("S1_base", mul(Ref("S"), everywhere("g_total")), "S1"),
            Elementwise("S1_right", mul(Ref("Vn"), rows("g_to_end")), "S1"),
            Gemm("S1", "k", "S1_right", transpose_left=True, add="S1_base", origin="S1"),
        ),
        (Store(OUT, "O"),),
        ("scale",),
    )
    return Plan("gated_delta_rule", DIMS, (prepare, forward))


def delta_rule() -> Plan:
    prepare = Program(
        "prepare",
        "delta_rule",
        None,
        (
            Load("k", K),
            Load("beta", BETA),
            Gate("strict", None, "strict", "A"),
            Gemm("k_k", "k", "k", transpose_right=True, origin="A"),
            Elementwise("A_source", mul(Ref("k_k"), Ref("strict"), rows("beta")), "A"),
            Inverse("A_beta", "A_source", "A", "beta"),
        ),
        (Store(A, "A_beta"),),
    )
    forward = Program(
        "forward",
        "delta_rule",
        Carry("S", ("K", "V"), "S1"),
        (
            Load("q", Q),
            Load("k", K),
            Load("v", V),
            Load("a", A, "A"),
            Gate("lower", None, "lower", "O"),
            Gemm("k_S", "k", "S", origin="Vn"),
            Elementwise("Vn_right", sub(Ref("v"), Ref("k_S")), "Vn"),
            Gemm("Vn", "a", "Vn_right", origin="Vn"),
            Gemm("q_S", "q", "S", origin="O"),
            Elementwise("O_base", mul(Ref("q_S"), everywhere("scale")), "O"),
            Gemm("q_k", "q", "k", transpose_right=True, origin="O"),
            Elementwise("O_left", mul(Ref("q_k"), Ref("lower"), everywhere("scale")), "O"),
            Gemm("O", "O_left", "Vn", add="O_base", origin="O"),
            Gemm("S1", "k", "Vn", transpose_left=True, add="S", origin="S1"),
        ),
        (Store(OUT, "O"),),
        ("scale",),
    )
    return Plan("delta_rule", DIMS, (prepare, forward))


def simple_gla() -> Plan:
    prepare = Program("prepare", "simple_gla", None, (Load("g", G), Scan("G", "g")), (Store(G_CUM, "G"),))
    forward = Program(
        "forward",
        "simple_gla",
        Carry("S", ("K", "V"), "S1"),
        (
            Load("q", Q),
            Load("k", K),
            Load("v", V),
            Load("g_cum", G_CUM),
            Gate("g_from_start", "g_cum", "from_start", "O"),
            Gate("g_decay", "g_cum", "decay", "O"),
            Gate("g_total", "g_cum", "total", "S1"),
            Gate("g_to_end", "g_cum", "to_end", "S1"),
            Gemm("q_S", "q", "S", origin="O"),
            Elementwise("O_scale", mul(Ref("g_from_start"), everywhere("scale")), "O"),
            Elementwise("O_base", mul(Ref("q_S"), rows("O_scale")), "O"),
            Gemm("q_k", "q", "k", transpose_right=True, origin="O"),
            Elementwise("O_left", mul(Ref("q_k"), Ref("g_decay"), everywhere("scale")), "O"),
            Gemm("O", "O_left", "v", add="O_base", origin="O"),
            Elementwise("S1_base", mul(Ref("S"), everywhere("g_total")), "S1"),
            Elementwise("S1_right", mul(Ref("v"), rows("g_to_end")), "S1"),
            Gemm("S1", "k", "S1_right", transpose_left=True, add="S1_base", origin="S1"),
        ),
        (Store(OUT, "O"),),
        ("scale",),
    )
    return Plan("simple_gla", DIMS, (prepare, forward))


PLANS = {plan.operator: plan for plan in (gated_delta_rule(), delta_rule(), simple_gla())}
