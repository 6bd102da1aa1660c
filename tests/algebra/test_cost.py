"""Bills of small expressions counted by hand, and of the three operators."""

from __future__ import annotations

import pytest

from qlagen.algebra import ir
from qlagen.algebra.build import build_form
from qlagen.algebra.cost import CostModel
from qlagen.algebra.derivation import Form
from qlagen.algebra.plan import describe, fused_plan, staged_plan
from qlagen.algebra.text import show

from .operators import NAMES, derivation, spec

C, N, M = 64, 128, 32
MODEL = CostModel({"1": 1, "C": C, "K": N, "V": M}, {"Q": 2, "K": 2, "V": 2, "beta": 4, "G": 4, "scale": 0}, "S")
Q = ir.input_node("Q", ("C", "K"))
K = ir.input_node("K", ("C", "K"))
V = ir.input_node("V", ("C", "V"))
S = ir.input_node("S", ("K", "V"))
BETA = ir.input_node("beta", ("C", "1"))
G = ir.input_node("G", ("C", "1"))
SCALE = ir.input_node("scale", ("1", "1"))
GRAM = ir.matmul(K, ir.transpose(K))
STRICT = ir.multiply(ir.mask("strict"), BETA, GRAM)
INVERSE = ir.inverse(STRICT)


@pytest.mark.parametrize(
    ("node", "work"),
    [
        (ir.matmul(K, S), (C * N * M, 0, 0)),
        (ir.matmul(K, ir.input_node("x", ("K", "1"))), (0, C * N, 0)),  # a matrix-vector product
        (INVERSE, (C**3 / 4, C * 120, 0)),
        (ir.decay(G), (0, C * C, C * C)),
        (ir.from_start(G), (0, C, C)),
        (ir.total(G), (0, 1, 1)),
        (ir.multiply(BETA, V), (0, C * M, 0)),
        (ir.multiply(BETA, ir.from_start(G), V), (0, C + C * M, 0)),  # vectors meet first
        (ir.multiply(SCALE, V), (0, 0, 0)),
        (ir.multiply(ir.total(G), S), (0, N * M, 0)),
        (ir.multiply(BETA, ir.from_start(G)), (0, C, 0)),
        (ir.multiply(ir.decay(G), GRAM), (0, C * C, 0)),
        (STRICT, (0, 2 * C * C, 0)),  # beta, mask
        (ir.subtract(V, ir.multiply(BETA, V)), (0, C * M, 0)),
        (ir.subtract(V, ir.matmul(K, S)), (0, 0, 0)),  # accumulates
        (ir.row_sum(V), (0, C * M, 0)),
        (V, (0, 0, 0)),
    ],
    ids=lambda x: show(x) if isinstance(x, ir.Node) else "",
)
def test_work(node: ir.Node, work: tuple[float, float, float]) -> None:
    billed = MODEL.work(node)
    assert (billed.multiply_adds, billed.elementwise, billed.exps) == work


def form(output: ir.Node, state: ir.Node = S) -> Form:
    return Form(output, state, (("O", output), ("S1", state)))


class TestOperands:
    def test_inputs_in_the_data_type_are_not_rounded(self) -> None:
        assert MODEL.cost(form(ir.matmul(GRAM, V))).rounded == C * C  # K and V are data, K K^T is computed
        assert MODEL.cost(form(ir.matmul(Q, S))).rounded == N * M  # the state is held in fp32

    def test_known_zeros_and_ones_are_exact(self) -> None:
        lower = ir.multiply(ir.mask("lower"), GRAM)
        assert MODEL.cost(form(ir.matmul(lower, V))).rounded == C * (C + 1) / 2
        assert MODEL.cost(form(ir.matmul(STRICT, V))).rounded == C * (C - 1) / 2
        assert MODEL.cost(form(ir.matmul(INVERSE, V))).rounded == C * (C - 1) / 2
        assert MODEL.cost(form(ir.matmul(ir.multiply(INVERSE, ir.transpose(BETA)), V))).rounded == C * (C + 1) / 2

    def test_conversions_are_elementwise_work(self) -> None:
        assert MODEL.cost(form(ir.matmul(GRAM, V))).elementwise == C * C

    def test_a_transpose_is_the_same_operand(self) -> None:
        product = ir.matmul(Q, ir.transpose(K))
        both = ir.add(ir.matmul(product, V), ir.matmul(ir.transpose(product), V))
        cost = MODEL.cost(form(both))
        assert cost.multiply_adds == C * C * N + 2 * C * C * M
        assert cost.rounded == C * C


class TestChain:
    def test_products_that_do_not_need_the_state_are_not_on_it(self) -> None:
        state = ir.add(S, ir.matmul(ir.transpose(K), ir.matmul(INVERSE, V)))
        assert MODEL.chain(state) == ()

    def test_longest_path(self) -> None:
        recalled = ir.matmul(K, S)
        state = ir.add(S, ir.matmul(ir.transpose(K), ir.subtract(ir.matmul(INVERSE, recalled), recalled)))
        assert next(show(n) for n in MODEL.chain(state)) == "K @ S"
        assert len(MODEL.chain(state)) == 3


class TestPlans:
    def test_textbook_kernels(self) -> None:
        plans = {name: describe(staged_plan(build_form(spec(name)), "S")) for name in NAMES}
        assert plans == {
            "gated_delta_rule": "A | W U | Vn S1 | O",
            "delta_rule": "A | W U | Vn S1 | O",
            "simple_gla": "S1 | O",
        }

    def test_the_inverse_is_prepared_apart(self) -> None:
        plans = {name: describe(fused_plan(derivation(name).chosen, "S")) for name in NAMES}
        assert plans == {"gated_delta_rule": "A | Vn O S1", "delta_rule": "A | Vn O S1", "simple_gla": "O S1"}

    def test_memory_traffic_of_the_textbook(self) -> None:
        """A, W, U, Vn and every state go through memory; counted by hand in KB at C=64, K=V=128."""
        vector, square, tile, state = 0.25, 8.0, 16.0, 32.0
        kernels = [
            tile + 2 * vector + square,  # K beta G -> A
            square + 2 * tile + 2 * vector + 2 * tile,  # A K V beta G -> W U
            2 * tile + tile + vector + tile + state,  # U W K G -> Vn, states
            3 * tile + vector + state + tile,  # Q K Vn G, states -> O
        ]
        assert derivation("gated_delta_rule").textbook_cost.hbm_bytes == 1024 * sum(kernels) == 1024 * 289.5

    def test_memory_traffic_of_the_chosen_form(self) -> None:
        kernels = [16 + 0.5 + 8, 3 * 16 + 8 + 0.5 + 16]  # K beta G -> A; Q K V A beta G -> O
        assert derivation("gated_delta_rule").chosen_cost.hbm_bytes == 1024 * sum(kernels) == 1024 * 97


class TestOperators:
    def test_textbook_and_chosen_multiply_adds(self) -> None:
        """5.83 and 5.31 million a chunk and head: the inverse and 7 products of two sizes, then one product fewer."""
        small, large, inverse = 64 * 64 * 128, 64 * 128 * 128, 65536
        derived = derivation("gated_delta_rule")
        assert derived.textbook_cost.multiply_adds == 5 * small + 3 * large + inverse == 5_832_704
        assert derived.chosen_cost.multiply_adds == 4 * small + 3 * large + inverse == 5_308_416

    def test_the_ungated_rule_costs_the_same_products_and_no_exps(self) -> None:
        gated, plain = derivation("gated_delta_rule"), derivation("delta_rule")
        assert plain.chosen_cost.multiply_adds == gated.chosen_cost.multiply_adds
        assert plain.chosen_cost.exps == 0
        assert gated.chosen_cost.exps == 64 * 64 + 64 + 64 + 1

    def test_chains(self) -> None:
        chains = {n: (derivation(n).textbook_cost.chain_gemms, derivation(n).chosen_cost.chain_gemms) for n in NAMES}
        assert chains == {"gated_delta_rule": (2, 3), "delta_rule": (2, 3), "simple_gla": (0, 0)}

    def test_sizes_come_from_the_spec(self) -> None:
        edits = (("K = 128", "K = 64"), ("V = 128", "V = 32"))
        small, tall, square = 64 * 64 * 32, 64 * 64 * 64, 64 * 64 * 32
        cost = CostModel.of(spec("simple_gla", *edits)).cost(build_form(spec("simple_gla", *edits)))
        assert cost.multiply_adds == 2 * small + tall + square
