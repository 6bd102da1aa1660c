"""Programs beyond the three specs: other forms that an algebra may hand over, and some that cannot be scheduled."""

from __future__ import annotations

from dataclasses import replace

from qlagen.program.ir import (
    Apply,
    Carry,
    ElementExpr,
    Elementwise,
    Gate,
    Gemm,
    Inverse,
    Load,
    Number,
    Operation,
    Program,
    Ref,
    Scan,
    Store,
    Tensor,
)

Q = Tensor("q", ("C", "K"), "data", "key", "token")
K = Tensor("k", ("C", "K"), "data", "key", "token")
V = Tensor("v", ("C", "V"), "data", "value", "token")
OUT = Tensor("o", ("C", "V"), "data", "value", "token")
G = Tensor("g", ("C",), "float32", "value", "token")
BETA = Tensor("beta", ("C",), "float32", "value", "token")
A = Tensor("a", ("C", "C"), "data", "value", "chunk")
W = Tensor("w", ("C", "K"), "data", "value", "chunk")
G_CUM = Tensor("g_cum", ("C",), "float32", "value", "chunk")
S = Carry("S", ("K", "V"), "S1")


def mul(left: ElementExpr, *others: ElementExpr) -> ElementExpr:
    for other in others:
        left = Apply("mul", left, other)
    return left


def sub(left: ElementExpr, right: ElementExpr) -> ElementExpr:
    return Apply("sub", left, right)


def without(program: Program, *names: str) -> Program:
    """The program without some operations."""
    return replace(program, operations=tuple(o for o in program.operations if o.name not in names))


def state_only(forward: Program) -> Program:
    """A forward program that carries the state and reads nothing out: its unused operations stay in."""
    return replace(forward, name="state_only", stores=(), scalars=forward.scalars)


def keep_values(forward: Program, value: str) -> Program:
    """A forward program that also stores a value of its chain."""
    tensor = Tensor("kept", ("C", "V"), "data", "value", "token")
    return replace(forward, name="keep_values", stores=(*forward.stores, Store(tensor, value)))


def unfused(forward: Program) -> Program:
    """The same program with one operation per product of an elementwise value."""
    operations: list[Operation] = []
    for operation in forward.operations:
        if isinstance(operation, Elementwise) and isinstance(operation.expr, Apply):
            left = operation.expr.left
            if isinstance(left, Apply):
                operations.append(Elementwise(f"{operation.name}_part", left, operation.origin))
                operation = replace(operation, expr=replace(operation.expr, left=Ref(f"{operation.name}_part")))
        operations.append(operation)
    return replace(forward, operations=tuple(operations))


def scaled_keys() -> Program:
    """A right operand made of a load: the auxiliary role scales K and hands it over. The total decay stands alone."""
    operations = (
        Load("k", K),
        Load("v", V),
        Load("g_cum", G_CUM),
        Gate("to_end", "g_cum", "to_end"),
        Gate("total", "g_cum", "total"),
        Elementwise("k_end", mul(Ref("k"), Ref("to_end", "rows"))),
        Elementwise("S_base", mul(Ref("S"), Ref("total", "all"))),
        Gemm("S1", "k_end", "v", transpose_left=True, add="S_base"),
        Gemm("O", "k", "S"),
    )
    return Program("forward", "scaled_keys", S, operations, (Store(OUT, "O"),))


def solved_keys() -> Program:
    """A chunk-parallel program whose products read what the same role made: W = (I + L)^-1 (beta K)."""
    operations = (
        Load("k", K),
        Load("g", G),
        Load("beta", BETA),
        Scan("G", "g"),
        Gate("from_start", "G", "from_start"),
        Gate("decay", "G", "decay"),
        Gate("strict", None, "strict"),
        Gemm("k_k", "k", "k", transpose_right=True),
        Elementwise("L", mul(Ref("k_k"), Ref("decay"), Ref("strict"), Ref("beta", "rows"))),
        Inverse("A", "L"),
        Elementwise("row", mul(Ref("from_start"), Ref("beta"))),
        Elementwise("k_beta", mul(Ref("k"), Ref("row", "rows"), Number(2))),
        Gemm("W", "A", "k_beta"),
    )
    return Program("prepare", "solved_keys", None, operations, (Store(A, "A"), Store(W, "W"), Store(G_CUM, "G")))


def textbook() -> tuple[Program, Program]:
    """The chunked gated delta rule as papers write it: W and U are made beside the state, and loaded."""
    U = Tensor("u", ("C", "V"), "data", "value", "chunk")
    prepare = (
        Load("k", K),
        Load("v", V),
        Load("g", G),
        Load("beta", BETA),
        Scan("G", "g"),
        Gate("from_start", "G", "from_start"),
        Gate("decay", "G", "decay"),
        Gate("strict", None, "strict"),
        Gemm("k_k", "k", "k", transpose_right=True),
        Elementwise("L", mul(Ref("k_k"), Ref("decay"), Ref("strict"), Ref("beta", "rows"))),
        Inverse("A", "L"),
        Elementwise("k_row", mul(Ref("from_start"), Ref("beta"))),
        Elementwise("k_beta", mul(Ref("k"), Ref("k_row", "rows"))),
        Elementwise("v_beta", mul(Ref("v"), Ref("beta", "rows"))),
        Gemm("W", "A", "k_beta"),
        Gemm("U", "A", "v_beta"),
    )
    forward = (
        Load("q", Q),
        Load("k", K),
        Load("w", W),
        Load("u", U),
        Load("g_cum", G_CUM),
        Gate("from_start", "g_cum", "from_start"),
        Gate("to_end", "g_cum", "to_end"),
        Gate("total", "g_cum", "total"),
        Gate("decay", "g_cum", "decay"),
        Gemm("w_S", "w", "S"),
        Elementwise("Vn", sub(Ref("u"), Ref("w_S"))),
        Gemm("q_k", "q", "k", transpose_right=True),
        Elementwise("P", mul(Ref("q_k"), Ref("decay"))),
        Gemm("q_S", "q", "S"),
        Elementwise("O_base", mul(Ref("q_S"), Ref("from_start", "rows"))),
        Gemm("O", "P", "Vn", add="O_base"),
        Elementwise("Vn_end", mul(Ref("Vn"), Ref("to_end", "rows"))),
        Elementwise("S_base", mul(Ref("S"), Ref("total", "all"))),
        Gemm("S1", "k", "Vn_end", transpose_left=True, add="S_base"),
    )
    stores = (Store(W, "W"), Store(U, "U"), Store(G_CUM, "G"))
    return (
        Program("prepare", "textbook", None, prepare, stores),
        Program("forward", "textbook", S, forward, (Store(OUT, "O"),)),
    )
