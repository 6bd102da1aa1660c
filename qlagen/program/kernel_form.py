"""The form that kernels evaluate, as an expression: for whoever asks how exact it can be.

A scale that moved into a handed-over tensor is rounded with it, which is another error than that of the form that the
algebra chose.
"""

from __future__ import annotations

from collections.abc import Mapping

from qlagen.algebra.build import chunk_inputs
from qlagen.algebra.derivation import Derivation, Form
from qlagen.algebra.ir import Node, factors_of, matmul, multiply, topological, transpose
from qlagen.algebra.walk import with_args
from qlagen.program.plan import moved_scales


def kernel_form(derivation: Derivation) -> Form:
    """The chosen form with the scales of operands where the programs have them. Raises E-PROGRAM as these do."""
    form, spec = derivation.chosen, derivation.spec
    nodes = {item.name: chunk_inputs(spec)[item.chunk_symbol] for item in spec.inputs}
    scales = {node: nodes[move.scale.name] for node, move in moved_scales(derivation).items()}
    done: dict[Node, Node] = {}
    for node in topological((form.output, form.state, *(stage for _, stage in form.stages))):
        same = all(done[a] is a for a in node.args)
        placed = node if same else with_args(node, tuple(done[a] for a in node.args))
        done[node] = _moved(placed, scales)
    return Form(done[form.output], done[form.state], tuple((name, done[stage]) for name, stage in form.stages))


def _moved(node: Node, scales: Mapping[Node, Node]) -> Node:
    """``a @ (beta * X)`` as ``(a * beta^T) @ X``, where beta is the scale of a."""
    if node.op != "matmul" or node.args[0] not in scales:
        return node
    left, right = node.args
    scale, factors = scales[left], list(factors_of(right))
    if scale not in factors or len(factors) == 1:
        return node
    factors.remove(scale)
    return matmul(multiply(left, transpose(scale)), multiply(*factors))
