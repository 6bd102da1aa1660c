"""From a derivation to the backward pass to run: reverse mode on its form, a search over the rule table, a proof.

Inverses are taken to be in memory from the forward pass, whatever else a plan saves: they are small, and to make them
again takes a chain of small steps. The objective is that of `qlagen.algebra.search`, multiply-adds first and then
entries rounded to the data type.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from qlagen.algebra.backward import BackwardForm, build_backward
from qlagen.algebra.backward_plans import BackwardPlan, backward_model, backward_plans
from qlagen.algebra.clocks import Clocks
from qlagen.algebra.cost import CostModel
from qlagen.algebra.derivation import Cost, Derivation, Proof, Step
from qlagen.algebra.facts import Facts
from qlagen.algebra.ir import Node, topological, transpose
from qlagen.algebra.ledger import Ledger, Rewriter, canonical, computed
from qlagen.algebra.plan import Kernel
from qlagen.algebra.prove_backward import prove_backward
from qlagen.algebra.search import Bounds, Program, Search
from qlagen.algebra.target import Throughput
from qlagen.algebra.text import show

BOUNDS = Bounds(width=40, tried=1000, rounds=80, patience=8)


@dataclass(frozen=True)
class BackwardDerivation:
    forward: Derivation
    textbook: BackwardForm
    """Reverse mode on the spec's stages."""
    start: BackwardForm
    """Reverse mode on the forward form that was chosen: where the search starts."""
    chosen: BackwardForm
    saved: tuple[Node, ...]
    """Expressions of the forward pass that bills and search take to be in memory."""
    steps: tuple[Step, ...]
    textbook_cost: Cost
    start_cost: Cost
    chosen_cost: Cost
    proof: Proof


def derive_backward(derivation: Derivation, *, group: int = 1, bounds: Bounds = BOUNDS) -> BackwardDerivation:
    """The backward pass of a derivation's form, simplified and proven; raises E-PROOF if it were wrong.

    `group` value heads share a key head, which only changes the bills.
    """
    spec, chunk = derivation.spec, derivation.proof.chunk
    textbook, start = build_backward(spec, derivation.textbook), build_backward(spec, derivation.chosen)
    model = backward_model(CostModel.of(spec, chunk, group), start, spec.state)
    saved = inverses(start.roots)
    search = Search(model, Facts.of(spec), frozenset(map(canonical, saved)), bounds)
    best = search.run(start.roots)
    chosen = follow(start, best, search.saved)
    return BackwardDerivation(
        forward=derivation,
        textbook=textbook,
        start=start,
        chosen=chosen,
        saved=saved,
        steps=steps_of(start, best, model, search.saved),
        textbook_cost=backward_cost(textbook, model, inverses(textbook.roots)),
        start_cost=backward_cost(start, model, saved),
        chosen_cost=backward_cost(chosen, model, saved),
        proof=prove_backward(spec, chosen, chunk=chunk),
    )


def inverses(roots: Iterable[Node]) -> tuple[Node, ...]:
    """The inverses that are computed for some results."""
    return tuple(node for node in computed(roots) if node.op == "inverse")


def backward_cost(backward: BackwardForm, model: CostModel, saved: Iterable[Node]) -> Cost:
    """The bill when one kernel walks the chunks in reverse and makes everything; `saved` and states are in memory."""
    known = frozenset(map(canonical, saved))
    bill = Ledger(backward.roots, model, known).bill
    gradients = tuple(node for _, node in backward.gradients)
    walk = (Kernel(("gradients",), gradients, backward.roots),)
    depth = Clocks(model, _NO_TARGET).depth(backward.state)
    return Cost(bill.multiply_adds, bill.elementwise, bill.exps, model.hbm_bytes(walk, known), depth, bill.rounded)


_NO_TARGET = Throughput(1, 1, 1, 1, 1, 1, 1, 1)
"""Depth counts products and needs no throughput."""


def plans_of(derivation: BackwardDerivation, facts: Throughput, group: int = 1) -> tuple[BackwardPlan, ...]:
    """Plans for the chosen backward pass that no other beats."""
    forward = derivation.forward
    model = CostModel.of(forward.spec, forward.proof.chunk, group)
    return backward_plans(forward.chosen, derivation.chosen, model, facts)


def follow(start: BackwardForm, program: Program, saved: frozenset[Node]) -> BackwardForm:
    """The program as a backward form; named expressions follow the rewrites, and those that are gone are left out."""
    names = tuple(name for name, _ in start.stages)
    nodes = tuple(node for _, node in start.stages)
    for step in program.path():
        if step.match is not None:
            nodes = Rewriter(nodes, saved).rewrite(step.match.exchanges)
    present = set(topological(program.roots))
    named = tuple(
        (name, node) for name, node in zip(names, nodes, strict=True) if node in present or transpose(node) in present
    )
    *gradients, state = program.roots
    listed = tuple((name, node) for (name, _), node in zip(start.gradients, gradients, strict=True))
    return replace(start, gradients=listed, state=state, stages=named)


def steps_of(start: BackwardForm, best: Program, model: CostModel, saved: frozenset[Node]) -> tuple[Step, ...]:
    """The rewrites as text. Expressions are shown by the names that they have before each."""
    steps: list[Step] = []
    for program in best.path():
        if program.match is not None and program.parent is not None:
            parent, child = (follow(start, p, saved) for p in (program.parent, program))
            names = {node: name for name, node in parent.stages}
            before = show(program.match.before, _but(names, program.match.before))
            after = show(program.match.after, _but(names, program.match.before))
            steps.append(Step(program.match.rule.name, before, after, backward_cost(child, model, saved)))
    return tuple(steps)


def _but(names: dict[Node, str], node: Node) -> dict[Node, str]:
    return {n: name for n, name in names.items() if n is not node and n is not transpose(node)}
