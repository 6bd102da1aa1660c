"""How a form is cut into kernels, as far as the bill needs it: what each kernel leaves in memory for the next."""

from __future__ import annotations

from dataclasses import dataclass

from qlagen.algebra.derivation import Form
from qlagen.algebra.ir import Node, depends_on, topological, transpose
from qlagen.algebra.walk import compute_nodes


@dataclass(frozen=True)
class Kernel:
    """One launch. It reads inputs and what earlier kernels stored, and stores `outputs`."""

    names: tuple[str, ...]
    outputs: tuple[Node, ...]
    computes: tuple[Node, ...]
    """Outputs and what stays on chip, for example the next state of a kernel that walks the chunks."""
    stores_state: bool = False
    """It writes the state before every chunk to memory, for a later kernel."""


def fused_plan(form: Form, state: str) -> tuple[Kernel, ...]:
    """Inverses that do not depend on the state, chunk-parallel, if there are any; then everything else in one walk."""
    inverses = tuple(
        n for n in compute_nodes((form.output, form.state)) if n.op == "inverse" and state not in depends_on(n)
    )
    names = {node: name for name, node in form.stages}
    main = Kernel(
        tuple(n for n, node in form.stages if node not in inverses), (form.output,), (form.output, form.state)
    )
    if not inverses:
        return (main,)
    return (Kernel(tuple(names.get(i, "inverse") for i in inverses), inverses, inverses), main)


def staged_plan(form: Form, state: str) -> tuple[Kernel, ...]:
    """The textbook cut. State-free stages, one chunk-parallel kernel per level of dependence; the stages on the way to
    the next state in one kernel that walks the chunks and stores every state; the read-outs, chunk-parallel."""
    stages = dict(form.stages)
    levels: dict[int, list[str]] = {}
    level: dict[str, int] = {}
    chain = [n for n in stages if state in depends_on(stages[n]) and _below(form.state, stages[n])]
    read_outs = [n for n in stages if state in depends_on(stages[n]) and n not in chain]
    for name in stages:
        if name not in chain and name not in read_outs:
            level[name] = 1 + max((level[m] for m in level if _below(stages[name], stages[m])), default=0)
            levels.setdefault(level[name], []).append(name)
    kernels = [_kernel(stages, group) for _, group in sorted(levels.items())]
    if chain:
        used = [n for n in chain if any(_below(stages[m], stages[n]) for m in read_outs)]
        used += [n for n in chain if stages[n] is form.output and n not in used]
        kernels.append(
            Kernel(tuple(chain), tuple(stages[n] for n in used), tuple(stages[n] for n in chain), bool(read_outs))
        )
    if read_outs:
        kernels.append(_kernel(stages, read_outs))
    return tuple(kernels)


def _kernel(stages: dict[str, Node], names: list[str]) -> Kernel:
    nodes = tuple(stages[n] for n in names)
    return Kernel(tuple(names), nodes, nodes)


def _below(root: Node, node: Node) -> bool:
    nodes = topological((root,))
    return node in nodes or transpose(node) in nodes


def describe(plan: tuple[Kernel, ...]) -> str:
    """The kernels by the stages they make, for example ``A | W U | Vn S1 | O``."""
    return " | ".join(" ".join(kernel.names) for kernel in plan)
