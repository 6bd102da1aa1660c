"""What the derivation did and what it gained, for people and for tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from qlagen.algebra.cost import CostModel
from qlagen.algebra.derivation import Cost, Derivation, Form, Step
from qlagen.algebra.ir import Node
from qlagen.algebra.text import show
from qlagen.algebra.walk import compute_nodes

_ROWS = (
    ("multiply-adds", "multiply_adds", 1e6, "M"),
    ("rounded operand entries", "rounded", 1e3, "k"),
    ("elementwise operations", "elementwise", 1e3, "k"),
    ("exps", "exps", 1.0, ""),
    ("memory traffic", "hbm_bytes", 1024.0, "KB"),
    ("products on the serial chain", "chain_gemms", 1.0, ""),
)


def stage_names(form: Form, *, but: Node | None = None) -> dict[Node, str]:
    """Names by which expressions may be shown: the form's stages, but not inputs."""
    return {node: name for name, node in form.stages if node is not but and node.args}


def stage_lines(form: Form) -> list[str]:
    """Every stage in terms of the others, ``name = expression``."""
    width = max(len(name) for name, _ in form.stages)
    return [f"{name:{width}s} = {show(node, stage_names(form, but=node))}" for name, node in form.stages]


def explain(derivation: Derivation) -> str:
    """A report: the rewrites with what each saved, the form, the bill, its matrix products, the proof."""
    model = CostModel.of(derivation.spec, derivation.proof.chunk)
    sizes = f"C={derivation.proof.chunk}, " + ", ".join(f"{d}={n}" for d, n in derivation.spec.dims)
    lines = [f"{derivation.spec.name}, per chunk and value head at {sizes}", ""]
    lines += ["Textbook stages", *indent(stage_lines(derivation.textbook)), ""]
    lines += ["Rewrites", *indent(step_lines(derivation.textbook_cost, derivation.steps)), ""]
    lines += ["Chosen form", *indent(stage_lines(derivation.chosen)), ""]
    lines += [*cost_table(derivation.textbook_cost, derivation.chosen_cost), ""]
    lines += ["Matrix products", *indent(_form_products(derivation.chosen, model)), ""]
    if derivation.refusals:
        lines += ["Refused", *indent(f"{r.rule}: {r.expression}: {r.reason}" for r in derivation.refusals), ""]
    return "\n".join([*lines, proof_line(derivation)]) + "\n"


def proof_line(derivation: Derivation) -> str:
    """What was proven, and how surely."""
    proof = derivation.proof
    return (
        f"Proven equal to [recurrence] at C={proof.chunk}, K={proof.key_dim}, V={proof.value_dim}: degree <= "
        f"{proof.degree}, {proof.trials} primes, a wrong form passes with probability <= {proof.bound:.1e}"
    )


def indent(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def step_lines(start: Cost, steps: Sequence[Step]) -> Iterator[str]:
    """Each rewrite with what it saved and cost; `start` is the bill before the first."""
    if not steps:
        yield "none"
    bills = [start, *(s.cost for s in steps)]
    for number, (step, (before, after)) in enumerate(zip(steps, pairwise(bills), strict=True), 1):
        yield f"{number}. {step.rule}"
        yield f"     {step.before}"
        yield f"  -> {step.after}"
        yield f"     {changes(before, after)}"


def changes(before: Cost, after: Cost) -> str:
    """What a rewrite saved and what it cost, in words."""
    saved: list[str] = []
    paid: list[str] = []
    for label, attribute, unit, suffix in _ROWS:
        difference = getattr(before, attribute) - getattr(after, attribute)
        if difference:
            noun = label.replace("products", "product") if abs(difference) == 1 else label
            text = f"{amount(abs(difference), unit, suffix)} {noun}"
            (saved if difference > 0 else paid).append(text)
    parts = [f"saves {', '.join(saved)}"] if saved else []
    parts += [f"costs {', '.join(paid)}"] if paid else []
    return "; ".join(parts) or "same bill; opens the way"


def amount(value: float, unit: float, suffix: str) -> str:
    """A number with its unit, for example ``5.31 M``."""
    if unit == 1.0 or value < unit / 10:
        return f"{value:.0f}" + (" B" if suffix == "KB" else "")
    return f"{value / unit:.2f} {suffix}" if unit == 1e6 else f"{value / unit:.1f} {suffix}"


def cost_table(textbook: Cost, chosen: Cost) -> list[str]:
    """Both bills side by side."""
    lines = [f"{'Bill':30s} {'textbook':>12s} {'chosen':>12s}"]
    for label, attribute, unit, suffix in _ROWS:
        cells = [amount(getattr(cost, attribute), unit, suffix) for cost in (textbook, chosen)]
        lines.append(f"  {label:28s} {cells[0]:>12s} {cells[1]:>12s}")
    return [*lines, "  (distinct expressions, each once; memory traffic between kernels)"]


def _form_products(form: Form, model: CostModel) -> Iterator[str]:
    nodes = tuple(compute_nodes((form.output, form.state)))
    return product_lines(nodes, dict(stage_names(form)), model, model.chain(form.state))


def product_lines(
    nodes: Sequence[Node], names: Mapping[Node, str], model: CostModel, chain: Sequence[Node]
) -> Iterator[str]:
    """The matrix products among the nodes with their sizes and places on the serial chain, and the inverses."""
    rows = [(_show_but(node, names), node) for node in nodes if model.is_gemm(node)]
    width = max((len(text) for text, _ in rows), default=0)
    for text, node in rows:
        rows_, inner, columns = node.shape[0], node.args[0].shape[1], node.shape[1]
        work = amount(model.work(node).multiply_adds, 1e6, "M")
        position = f"  chain {chain.index(node) + 1}" if node in chain else ""
        yield f"{text:{width}s}  {rows_}x{inner}x{columns}  {work}{position}"
    for node in nodes:
        if node.op == "inverse":
            yield f"{_show_but(node, names)}  {amount(model.work(node).multiply_adds, 1e6, 'M')}"


def _show_but(node: Node, names: Mapping[Node, str]) -> str:
    return show(node, {n: name for n, name in names.items() if n is not node})


def explain_json(derivation: Derivation) -> dict[str, Any]:
    """The same for tools: JSON-ready, numbers unrounded."""
    textbook, chosen = derivation.textbook_cost, derivation.chosen_cost
    return {
        "spec": derivation.spec.name,
        "chunk": derivation.proof.chunk,
        "forward": {
            "textbook_madds": textbook.multiply_adds,
            "madds": chosen.multiply_adds,
            "exps": chosen.exps,
            "hbm_bytes": chosen.hbm_bytes,
            "textbook_hbm_bytes": textbook.hbm_bytes,
            "chain_gemms": chosen.chain_gemms,
            "elementwise": chosen.elementwise,
            "rounded": chosen.rounded,
            "stages": {n: show(e, stage_names(derivation.chosen, but=e)) for n, e in derivation.chosen.stages},
            "steps": [{"rule": s.rule, "before": s.before, "after": s.after} for s in derivation.steps],
            "refused": [{"rule": r.rule, "expression": r.expression, "reason": r.reason} for r in derivation.refusals],
        },
        "proof_bound": derivation.proof.bound,
    }
