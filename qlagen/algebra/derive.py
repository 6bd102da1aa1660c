"""From the textbook stages to the form to run: a bounded beam search over the rule table, then a proof.

The objective is lexicographic: multiply-adds, entries rounded to the data type, stages of the spec that the form no
longer contains, elementwise operations, exps, memory traffic, products on the serial chain. Stages count because
kernels cite them: a few per cent of elementwise work do not justify a kernel that its spec does not explain. Fewer
rewrites win a tie, so a form changes only where that gains something.
"""

from __future__ import annotations

from dataclasses import dataclass

from qlagen.algebra.build import build_form
from qlagen.algebra.cost import CostModel
from qlagen.algebra.derivation import Cost, Derivation, Form, Step
from qlagen.algebra.facts import Facts
from qlagen.algebra.ir import Node, topological, transpose
from qlagen.algebra.plan import describe, fused_plan, staged_plan
from qlagen.algebra.prove import prove
from qlagen.algebra.rules import Known, Match, matches, refusals
from qlagen.algebra.text import show
from qlagen.algebra.walk import substitute
from qlagen.spec.model import OpSpec


@dataclass(frozen=True)
class Bounds:
    """How far the search goes: forms kept per round, rounds at most, rounds without a gain before it stops, and forms
    looked at in all."""

    width: int = 40
    rounds: int = 20
    patience: int = 4
    forms: int = 20_000


@dataclass(frozen=True)
class Candidate:
    """A form on the way, its bill, and the rewrite that made it from another."""

    form: Form
    cost: Cost
    parent: Candidate | None = None
    match: Match | None = None
    depth: int = 0

    @property
    def objective(self) -> tuple[float, ...]:
        """What the search minimises, most important first; stages kept count negative."""
        c, kept = self.cost, len(self.form.stages)
        return (c.multiply_adds, c.rounded, -kept, c.elementwise, c.exps, c.hbm_bytes, c.chain_gemms)

    @property
    def order(self) -> tuple[float | str, ...]:
        return (*self.objective, self.depth, self.form.output.key, self.form.state.key)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The rewrites from the first form to this one, as text, with the form's other stages by name."""
        if self.parent is None or self.match is None:
            return ()
        before, after = self.match.before, self.match.after
        names = {node: name for name, node in self.parent.form.stages if node is not before and node.args}
        step = Step(self.match.rule.name, show(before, names), show(after, names), self.cost)
        return (*self.parent.steps, step)


def derive(spec: OpSpec, *, chunk: int | None = None, bounds: Bounds = Bounds()) -> Derivation:
    """Prove the spec's stages, search for the form to run and prove it too.

    `chunk` is the chunk length C, the spec's first by default. Raises E-PROOF when the stages are not the recurrence.
    """
    length = chunk or spec.chunk[0]
    textbook = build_form(spec)
    prove(spec, textbook, chunk=length)
    model, facts = CostModel.of(spec, length), Facts.of(spec)
    staged, fused = staged_plan(textbook, spec.state), fused_plan(textbook, spec.state)
    textbook_cost = model.cost(textbook, staged)
    start = Candidate(textbook, model.cost(textbook))
    best = search(start, model, facts, bounds)
    fuse = Step("fuse stages", describe(staged), describe(fused), start.cost)
    steps = (fuse, *best.steps) if fuse.before != fuse.after else best.steps
    return Derivation(
        spec=spec,
        textbook=textbook,
        chosen=best.form,
        steps=steps,
        textbook_cost=textbook_cost,
        chosen_cost=best.cost,
        proof=prove(spec, best.form, chunk=length),
        refusals=refusals((best.form.output, best.form.state), facts),
    )


def search(start: Candidate, model: CostModel, facts: Facts, bounds: Bounds) -> Candidate:
    """The cheapest form that the beam meets."""
    known: Known = {}
    best, front, seen, idle = start, [start], {_roots(start.form)}, 0
    for _ in range(bounds.rounds):
        candidates = list[Candidate]()
        for parent in front:
            for match in matches(_roots(parent.form), facts, known):
                form = rewrite_form(parent.form, match)
                if _roots(form) not in seen:
                    seen.add(_roots(form))
                    candidates.append(Candidate(form, model.cost(form), parent, match, parent.depth + 1))
        front = sorted(candidates, key=lambda c: c.order)[: bounds.width]
        if not front:
            break
        gained = front[0].objective < best.objective
        best, idle = (front[0], 0) if gained else (best, idle + 1)
        if idle == bounds.patience or len(seen) > bounds.forms:
            break
    return best


def _roots(form: Form) -> tuple[Node, Node]:
    return (form.output, form.state)


def rewrite_form(form: Form, match: Match) -> Form:
    """The form with one rewrite done everywhere. Stages follow; a stage that no longer occurs is gone."""
    replacements = {transpose(match.before): transpose(match.after), match.before: match.after}
    output, state, *stages = substitute((form.output, form.state, *(n for _, n in form.stages)), replacements)
    present = set(topological((output, state)))
    kept = [
        (name, node)
        for (name, _), node in zip(form.stages, stages, strict=True)
        if node in present or transpose(node) in present
    ]
    return Form(output, state, tuple(kept))
