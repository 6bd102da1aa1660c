"""The Pareto set of an operator's forward pass: forms and kernel plans, by GEMM work, serial chain and memory traffic.

No single objective decides between the points: how many heads there are, and what else runs, does. Each is proven.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qlagen.algebra.clocks import Clocks
from qlagen.algebra.cost import CostModel
from qlagen.algebra.derivation import Derivation, Form
from qlagen.algebra.facts import Facts
from qlagen.algebra.ir import Node, topological, transpose
from qlagen.algebra.kernel_plans import Plan, forward_plans
from qlagen.algebra.pareto import Objectives, pareto_set
from qlagen.algebra.plan_bill import PlanBill, bill_plan
from qlagen.algebra.prove_forms import prove_forms
from qlagen.algebra.search import Bounds, Key, Program, Roots, Search
from qlagen.algebra.target import Throughput
from qlagen.algebra.walk import substitute

BOUNDS = Bounds(width=24, tried=400, rounds=20, patience=5)


@dataclass(frozen=True)
class Point:
    """One way to run the forward pass."""

    form: Form
    plan: Plan
    bill: PlanBill
    rules: tuple[str, ...]
    """Rewrites from the textbook to the form, in order."""

    @property
    def objectives(self) -> Objectives:
        """Multiply-adds, serial clocks and bytes of memory traffic, per chunk and value head."""
        return (self.bill.multiply_adds, self.bill.serial_clocks, self.bill.hbm_bytes)


@dataclass(frozen=True)
class ForwardSet:
    """Points that no other beats; `group` value heads share a key head. `bound`: the probability that any of the forms
    is wrong, at most."""

    group: int
    points: tuple[Point, ...]
    bound: float


def explore_forward(derivation: Derivation, facts: Throughput, group: int = 1) -> ForwardSet:
    """The Pareto set around a derivation, whose chosen form is always looked at. Raises E-PROOF if a form is wrong."""
    spec, chunk = derivation.spec, derivation.proof.chunk
    model = CostModel.of(spec, chunk, group)
    clocks = Clocks(model, facts)
    points = [
        Point(form, plan, bill_plan(plan.kernels, plan.carried, clocks), rules)
        for form, rules in _forms(derivation, model, clocks)
        for plan in forward_plans(form, model)
    ]
    kept = pareto_set(points, lambda p: p.objectives)
    bound = prove_forms(spec, tuple(dict.fromkeys(p.form for p in kept)), chunk=chunk)
    return ForwardSet(group, kept, bound)


def _forms(derivation: Derivation, model: CostModel, clocks: Clocks) -> Iterator[tuple[Form, tuple[str, ...]]]:
    """For every amount of work and length of the chain that no other beats one form, and its rules: the textbook's or
    the chosen one if they have it, because kernels cite their stages; else the one that rounds least."""
    textbook, chosen = derivation.textbook, derivation.chosen
    known: dict[Roots, tuple[Form, tuple[str, ...]]] = {(textbook.output, textbook.state): (textbook, ())}
    known[chosen.output, chosen.state] = (chosen, tuple(step.rule for step in derivation.steps))

    def by_latency(program: Program) -> Key:
        return (clocks.depth(program.roots[1]), clocks.latency(program.roots[1]), *program.bill)

    def by_work(program: Program) -> Key:
        return (*program.bill, clocks.latency(program.roots[1]))

    search = Search(model, Facts.of(derivation.spec), bounds=BOUNDS, objectives=(by_work, by_latency))
    search.run((textbook.output, textbook.state))
    search.start((chosen.output, chosen.state))
    ranked = sorted(search.visited, key=lambda p: (p.roots not in known, *by_work(p), p.tie))
    for program in pareto_set(ranked, lambda p: (p.bill.multiply_adds, clocks.depth(p.roots[1]))):
        yield known.get(program.roots) or (_named_form(textbook, program), _rules(program))


def _rules(program: Program) -> tuple[str, ...]:
    return tuple(p.match.rule.name for p in program.path() if p.match is not None)


def _named_form(textbook: Form, program: Program) -> Form:
    """The program as a form: the textbook's stages follow its rewrites, and those that are gone are left out."""
    nodes: tuple[Node, ...] = tuple(node for _, node in textbook.stages)
    for step in program.path():
        if step.match is not None:
            exchanged: dict[Node, Node] = {}
            for before, after in step.match.exchanges:
                exchanged |= {transpose(before): transpose(after), before: after}
            nodes = substitute(nodes, exchanged)
    present = set(topological(program.roots))
    named = zip((name for name, _ in textbook.stages), nodes, strict=True)
    output, state = program.roots
    return Form(output, state, tuple((n, e) for n, e in named if e in present or transpose(e) in present))


def flatten(points: Iterable[Point]) -> Iterator[dict[str, object]]:
    """The points for tools: JSON-ready."""
    for point in points:
        bill = point.bill
        yield {
            "madds": bill.multiply_adds,
            "serial_clocks": bill.serial_clocks,
            "hbm_bytes": bill.hbm_bytes,
            "chain_gemms": bill.chain_gemms,
            "elementwise": bill.elementwise,
            "exps": bill.exps,
            "kernels": point.plan.describe(),
            "rules": list(point.rules),
        }
