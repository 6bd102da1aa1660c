"""Plans, their bills and the Pareto set of the forward pass."""

from __future__ import annotations

from functools import cache

import pytest

from qlagen.algebra import ir
from qlagen.algebra.build import build_form
from qlagen.algebra.clocks import Clocks
from qlagen.algebra.cost import CostModel
from qlagen.algebra.derivation import Form
from qlagen.algebra.explain import stage_lines
from qlagen.algebra.explore import ForwardSet, explore_forward, flatten
from qlagen.algebra.kernel_plans import MOST_HOISTED, forward_plans, hoistable
from qlagen.algebra.pareto import dominates
from qlagen.algebra.plan import Kernel
from qlagen.algebra.plan_bill import bill_plan
from qlagen.algebra.prove import prove
from qlagen.algebra.prove_forms import prove_forms
from qlagen.algebra.target import Throughput, load_throughput
from qlagen.errors import QlagenError

from .operators import NAMES, derivation, spec

FACTS = Throughput(
    tensor_multiply_adds=1000,
    lanes=100,
    slots_per_element=2,
    special_functions=10,
    memory_bytes=7,
    shared_memory_bytes=64,
    dependent_gemm_latency=300,
    shared_memory=200_000,
)
C, N, M = 64, 128, 128
SMALL, LARGE, INVERSE = C * C * N, C * N * M, C**3 // 4


@cache
def explored(name: str, group: int = 1) -> ForwardSet:
    return explore_forward(derivation(name), load_throughput(), group)


class TestTarget:
    def test_default(self) -> None:
        facts = load_throughput()
        assert facts.tensor_multiply_adds == 64 * 64 * 16 / 32
        assert facts.elements == facts.lanes / facts.slots_per_element

    def test_another_name(self) -> None:
        with pytest.raises(QlagenError, match="there is no target 'sm_90'") as caught:
            load_throughput("sm_90")
        assert caught.value.code == "E-TARGET"
        assert caught.value.hints


class TestClocks:
    model = CostModel.of(spec("gated_delta_rule"))

    def test_a_product_on_the_chain(self) -> None:
        clocks = Clocks(self.model, FACTS)
        state, key = ir.input_node("S", ("K", "V")), ir.input_node("K", ("C", "K"))
        product = ir.matmul(key, state)
        converted = N * M * 2 * 2 / 64  # bytes of the state, issue slots, bytes per clock
        assert clocks.latency(product) == LARGE / 1000 + 300 + converted
        assert clocks.latency(ir.matmul(key, ir.transpose(key))) == 0
        scaled = ir.multiply(ir.input_node("beta", ("C", "1")), product)
        assert clocks.latency(scaled) == clocks.latency(product) + C * M / 50
        assert (clocks.depth(scaled), clocks.depth(key)) == (1, 0)

    @pytest.mark.parametrize("name", NAMES)
    def test_depth_is_the_length_of_the_chain(self, name: str) -> None:
        for form in (build_form(spec(name)), derivation(name).chosen):
            model = CostModel.of(spec(name))
            assert Clocks(model, FACTS).depth(form.state) == len(model.chain(form.state))

    def test_busiest_pipe(self) -> None:
        clocks = Clocks(self.model, FACTS)
        gate = ir.input_node("G", ("C", "1"))
        key = ir.input_node("K", ("C", "K"))
        assert clocks.busiest([ir.matmul(key, ir.transpose(key))]) == SMALL / 1000
        assert clocks.busiest([ir.decay(gate)]) == C * C / 10
        assert clocks.busiest([ir.multiply(ir.from_start(gate), key)]) == C * N / 50


class TestPlanBill:
    def form(self) -> Form:
        return build_form(spec("gated_delta_rule"))

    def test_one_kernel_costs_what_the_form_costs(self) -> None:
        form, model = self.form(), CostModel.of(spec("gated_delta_rule"))
        plan = (Kernel(("all",), (form.output,), (form.output, form.state)),)
        bill, cost = bill_plan(plan, form.state, Clocks(model, FACTS)), model.cost(form)
        assert (bill.multiply_adds, bill.elementwise, bill.exps) == (cost.multiply_adds, cost.elementwise, cost.exps)
        assert bill.hbm_bytes == 1024 * (4 * 16 + 0.5)  # Q K V O, beta and G
        assert bill.chain_gemms == cost.chain_gemms

    def test_what_is_not_stored_is_computed_again(self) -> None:
        form, model = self.form(), CostModel.of(spec("gated_delta_rule"))
        stages = dict(form.stages)
        inverse, keys, values = stages["A"], stages["W"], stages["U"]
        walk = Kernel(("walk",), (form.output,), (form.output, form.state))
        clocks = Clocks(model, FACTS)
        apart = bill_plan((Kernel(("W",), (keys,), (keys,)), walk), form.state, clocks)
        stored = bill_plan((Kernel(("W",), (keys, inverse), (keys,)), walk), form.state, clocks)
        assert apart.multiply_adds - stored.multiply_adds == SMALL + INVERSE  # U needs the inverse again
        assert stored.hbm_bytes - apart.hbm_bytes == 1024 * (8 + 8)  # written and read
        both = bill_plan((Kernel(("W U",), (keys, values), (keys, values)), walk), form.state, clocks)
        assert both.multiply_adds == model.cost(form).multiply_adds

    def test_groups_share_what_needs_keys_alone(self) -> None:
        form = self.form()
        bills = [CostModel.of(spec("gated_delta_rule"), group=r).cost(form) for r in (1, 4)]
        assert bills[0].multiply_adds - bills[1].multiply_adds == 0.75 * 2 * SMALL  # K K^T and Q K^T
        assert CostModel.of(spec("gated_delta_rule"), group=4).cost(
            derivation("gated_delta_rule").chosen
        ).hbm_bytes == (1024 * (4 + 0.5 + 8 + 2 * 4 + 16 + 8 + 0.5 + 16))


class TestPlans:
    def test_candidates(self) -> None:
        model = CostModel.of(spec("gated_delta_rule"))
        form = build_form(spec("gated_delta_rule"))
        names = {node: name for name, node in form.stages}
        assert [names.get(n, "QK") for n in hoistable(form, model)] == ["QK", "A", "W", "U"]
        assert len(hoistable(form, model)) <= MOST_HOISTED

    def test_every_combination_with_read_outs_in_or_out(self) -> None:
        model = CostModel.of(spec("gated_delta_rule"))
        plans = list(forward_plans(build_form(spec("gated_delta_rule")), model))
        assert len(plans) == 2**4 * 3
        texts = [p.describe() for p in plans]
        assert "((Q @ K^T) * decay(G)) A | O S1" in texts
        assert {"O S1", "W U | O S1", "W U | Vn S1 | O", "A | S1 | O"} <= set(texts)
        assert all(any(p.carried in k.computes for k in p.kernels) for p in plans)

    def test_read_outs_apart_read_every_state(self) -> None:
        model = CostModel.of(spec("simple_gla"))
        form = build_form(spec("simple_gla"))
        plans = {p.describe(): p for p in forward_plans(form, model)}
        inside = bill_plan(plans["O S1"].kernels, form.state, Clocks(model, FACTS))
        apart = bill_plan(plans["S1 | O"].kernels, form.state, Clocks(model, FACTS))
        assert apart.hbm_bytes - inside.hbm_bytes == 1024 * (2 * 32 + 2 * 16 + 0.25)  # states; K, V and G again


class TestForwardSet:
    def test_work_that_experts_found(self) -> None:
        """5.31 million multiply-adds a chunk and head, 4.52 where four value heads share a key head."""
        assert min(p.bill.multiply_adds for p in explored("gated_delta_rule").points) == 4 * SMALL + 3 * LARGE + INVERSE
        shared = explored("gated_delta_rule", 4)
        assert min(p.bill.multiply_adds for p in shared.points) == 2.5 * SMALL + 3 * LARGE + INVERSE == 4_521_984

    def test_a_chain_of_two_products(self) -> None:
        for group, limit in ((1, 5_832_704), (4, 5_046_272)):
            two = [p for p in explored("gated_delta_rule", group).points if p.bill.chain_gemms == 2]
            assert [p.bill.multiply_adds for p in two][:1] == [limit]

    @pytest.mark.parametrize("name", NAMES)
    def test_no_point_beats_another(self, name: str) -> None:
        points = explored(name).points
        assert not any(dominates(a.objectives, b.objectives) for a in points for b in points)
        assert list(points) == sorted(points, key=lambda p: p.objectives)

    @pytest.mark.parametrize("name", NAMES)
    def test_every_form_is_proven(self, name: str) -> None:
        assert explored(name).bound < 1e-12
        for form in dict.fromkeys(p.form for p in explored(name).points):
            assert prove(spec(name), form, chunk=16).bound < 1e-12

    def test_the_chosen_form_stands_for_its_kind(self) -> None:
        first = explored("gated_delta_rule").points[0]
        assert stage_lines(first.form) == stage_lines(derivation("gated_delta_rule").chosen)
        assert first.rules[:3] == ("fuse stages", "associate", "factor left")

    def test_for_tools(self) -> None:
        rows = list(flatten(explored("gated_delta_rule").points))
        assert rows[0]["madds"] == 5_308_416
        assert all({"madds", "serial_clocks", "hbm_bytes", "chain_gemms", "kernels", "rules"} <= set(r) for r in rows)

    def test_a_wrong_form_is_refused(self) -> None:
        op, right = spec("gated_delta_rule"), derivation("gated_delta_rule").chosen
        wrong = Form(right.output, ir.negate(right.state), right.stages)
        with pytest.raises(QlagenError, match="E-PROOF"):
            prove_forms(op, (right, wrong), chunk=8)
