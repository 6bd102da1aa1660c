"""Ledgers, forecasts and the search: what is forecast is what is billed, and searches end where they did before."""

from __future__ import annotations

import numpy as np
import pytest

from qlagen.algebra import ir
from qlagen.algebra.backward import build_backward
from qlagen.algebra.backward_plans import backward_model
from qlagen.algebra.build import build_form
from qlagen.algebra.cost import CostModel
from qlagen.algebra.derivation import Form
from qlagen.algebra.facts import Facts
from qlagen.algebra.ledger import Bill, Ledger, Rewriter, canonical, computed
from qlagen.algebra.pareto import dominates, pareto_set
from qlagen.algebra.prove import prove
from qlagen.algebra.search import Bounds, Program, Search
from qlagen.algebra.walk import substitute

from .operators import NAMES, derivation, spec

Q = ir.input_node("Q", ("C", "K"))
K = ir.input_node("K", ("C", "K"))
V = ir.input_node("V", ("C", "V"))
S = ir.input_node("S", ("K", "V"))
BETA = ir.input_node("beta", ("C", "1"))
MODEL = CostModel.of(spec("gated_delta_rule"))
INVERSE = ir.inverse(ir.multiply(ir.mask("strict"), BETA, ir.matmul(K, ir.transpose(K))))


def program_of(name: str) -> tuple[tuple[ir.Node, ...], CostModel, frozenset[ir.Node]]:
    """The backward pass of the textbook: results, cost model, what is saved."""
    op = spec(name)
    backward = build_backward(op, build_form(op))
    model = backward_model(CostModel.of(op), backward, op.state)
    return backward.roots, model, frozenset(canonical(n) for n in computed(backward.roots) if n.op == "inverse")


class TestLedger:
    @pytest.mark.parametrize("name", NAMES)
    def test_agrees_with_the_bill_of_a_form(self, name: str) -> None:
        for form in (build_form(spec(name)), derivation(name).chosen):
            cost = CostModel.of(spec(name)).cost(form)
            bill = Ledger((form.output, form.state), CostModel.of(spec(name))).bill
            assert bill == (cost.multiply_adds, cost.rounded, cost.elementwise, cost.exps)

    def test_saved_expressions_and_what_is_below_them_are_free(self) -> None:
        used = ir.matmul(INVERSE, V)
        assert Ledger((used,), MODEL).bill.multiply_adds == 64 * 64 * (128 + 128) + 64**3 / 4
        assert Ledger((used,), MODEL, frozenset({canonical(INVERSE)})).bill == Bill(64 * 64 * 128, 0.0, 0.0, 0.0)
        gram = ir.matmul(K, ir.transpose(K))
        both = Ledger((used, gram), MODEL, frozenset({canonical(INVERSE)}))
        assert both.bill.multiply_adds == 64 * 64 * (128 + 128)  # the Gram matrix is needed outside as well

    @pytest.mark.parametrize("name", NAMES)
    def test_rewritten_programs_are_billed_as_if_from_scratch(self, name: str) -> None:
        roots, model, saved = program_of(name)
        search = Search(model, Facts.of(spec(name)), saved)
        ledger, rewriter = Ledger(roots, model, saved), Rewriter(roots, saved)
        matches = list(search.matches(roots))
        assert len(matches) > 10
        for match in matches:
            made = rewriter.rewrite(match.exchanges)
            assert ledger.bill_of(made) == Ledger(made, model, saved).bill
            exchanged = {canonical(n): canonical(n) for n in saved}
            for before, after in match.exchanges:
                exchanged |= {ir.transpose(before): ir.transpose(after), before: after}
            assert made == substitute(roots, exchanged)

    def test_a_forecast_is_exact_where_the_users_stay(self) -> None:
        inner = ir.matmul(K, S)
        root = ir.matmul(ir.transpose(K), ir.multiply(BETA, ir.subtract(V, inner)))
        ledger = Ledger((root,), MODEL)
        scaled = ir.multiply(ir.from_start(ir.input_node("G", ("C", "1"))), inner)
        (made,) = Rewriter((root,), frozenset()).rewrite(((inner, scaled),))
        forecast, bill = ledger.forecast(((inner, scaled),)), Ledger((made,), MODEL).bill
        assert (forecast.multiply_adds, forecast.rounded, forecast.exps) == (bill[0], bill[1], bill[3])
        assert forecast.elementwise < bill.elementwise  # the sum no longer accumulates: only the full bill sees that


class TestComputed:
    def test_order_and_transposes(self) -> None:
        product = ir.matmul(Q, ir.transpose(K))
        nodes = computed((ir.matmul(product, V), ir.matmul(ir.transpose(product), V)))
        assert [canonical(n) for n in nodes].count(canonical(product)) == 1
        assert len(nodes) == 3
        assert nodes[0] in (product, ir.transpose(product))

    def test_saved_ones_are_left_out(self) -> None:
        assert computed((ir.matmul(INVERSE, V),), {canonical(INVERSE)}) == (ir.matmul(INVERSE, V),)


class TestSearch:
    def start(self, name: str = "gated_delta_rule") -> tuple[Search, tuple[ir.Node, ...]]:
        op = spec(name)
        form = build_form(op)
        return Search(CostModel.of(op), Facts.of(op), bounds=Bounds(width=8, tried=100)), (form.output, form.state)

    def test_finds_the_form_with_one_product_fewer(self) -> None:
        search, roots = self.start()
        best = search.run(roots)
        assert search.visited[0].bill.multiply_adds - best.bill.multiply_adds == 64 * 64 * 128
        rules = [p.match.rule.name for p in best.path() if p.match is not None]
        assert {"associate", "factor left"} <= set(rules)
        assert len(rules) == best.depth

    def test_same_again(self) -> None:
        first, second = (search.run(roots) for search, roots in (self.start(), self.start()))
        assert first.roots == second.roots
        assert [p.tie for p in first.path()] == [p.tie for p in second.path()]

    def test_every_program_on_the_path_is_a_form(self) -> None:
        search, roots = self.start()
        for program in search.run(roots).path():
            output, state = program.roots
            form = Form(output, state, (("O", output), ("S1", state)))
            assert prove(spec("gated_delta_rule"), form, chunk=8).bound < 1e-12

    def test_bounds_are_kept(self) -> None:
        op = spec("gated_delta_rule")
        search, roots = self.start()
        search.bounds = Bounds(width=2, tried=5, rounds=3)
        search.run(roots)
        assert len(search.visited) <= 1 + 3 * 5
        assert max(p.depth for p in search.visited) <= 3
        assert op.state == "S"

    def test_objectives_share_the_front(self) -> None:
        op = spec("gated_delta_rule")
        form = build_form(op)
        deepest = Search(
            CostModel.of(op), Facts.of(op), bounds=Bounds(width=4, tried=60, rounds=4), objectives=(_bill, _unlike_bill)
        )
        deepest.run((form.output, form.state))
        kept = [p.parent for p in deepest.visited if p.depth == 2 and p.parent is not None]
        bills = sorted({p.bill.multiply_adds for p in kept})
        assert len(bills) > 1  # cheap and dear programs both went on


def _bill(program: Program) -> tuple[float, ...]:
    return tuple(program.bill)


def _unlike_bill(program: Program) -> tuple[float, ...]:
    return (-program.bill.multiply_adds,)


class TestPareto:
    def test_dominates(self) -> None:
        assert dominates((1.0, 2.0), (1.0, 3.0))
        assert not dominates((1.0, 2.0), (1.0, 2.0))
        assert not dominates((1.0, 4.0), (2.0, 3.0))

    def test_against_its_definition(self) -> None:
        points = [tuple(map(float, p)) for p in np.random.default_rng(0).integers(0, 6, (60, 3))]
        kept = pareto_set(enumerate(points), lambda p: p[1])
        assert [p for _, p in kept] == sorted({p for p in points if not any(dominates(other, p) for other in points)})
        assert all(number == points.index(point) for number, point in kept)  # the first of equal ones
