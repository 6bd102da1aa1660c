"""The backward pass of one chunk, by reverse mode on a form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qlagen.algebra.adjoint import adjoints
from qlagen.algebra.build import chunk_inputs
from qlagen.algebra.derivation import Form
from qlagen.algebra.ir import Node, input_node, zero
from qlagen.algebra.ir_adjoint import suffix_sum
from qlagen.spec.model import OpSpec


@dataclass(frozen=True)
class BackwardForm:
    """Cotangents of the inputs of one chunk as expressions over its inputs, the incoming state and what is seeded.

    The passes of all chunks make the reverse recurrence: `state` of a chunk is `state_seed` of the one before it.
    """

    output_seed: Node
    """Input: the cotangent of the chunk's output, [C, V]."""
    state_seed: Node
    """Input: the cotangent of the state after the chunk, [K, V]."""
    gradients: tuple[tuple[str, Node], ...]
    """Input name to its cotangent, stacked as the input is ([C, K], [C, V], [C, 1]), in the order of the spec's
    ``[grad]``. That of a log gate is with respect to g of every token, not to its cumulative sum."""
    state: Node
    """The cotangent of the incoming state, [K, V]."""
    stages: tuple[tuple[str, Node], ...] = ()
    """Names of expressions inside, for people: stages of the forward pass and their cotangents."""

    @property
    def roots(self) -> tuple[Node, ...]:
        """All results; the incoming state's cotangent is the last."""
        return (*(node for _, node in self.gradients), self.state)


def build_backward(spec: OpSpec, form: Form) -> BackwardForm:
    """The backward pass of a form of a spec, as reverse mode gives it, for the inputs in the spec's ``[grad]``."""
    output_seed = input_node(seed_name(spec, spec.output), form.output.shape)
    state_seed = input_node(seed_name(spec, spec.state_output), form.state.shape)
    known = adjoints(((form.output, output_seed), (form.state, state_seed)))
    nodes = chunk_inputs(spec)
    gradients: list[tuple[str, Node]] = []
    for name in spec.gradients:
        if name != spec.state:
            tensor = spec.input(name)
            node = nodes[tensor.chunk_symbol]
            found = known.get(node, zero(node.shape))
            gradients.append((name, suffix_sum(found) if tensor.role == "log_gate" else found))
    state = known.get(nodes[spec.state], zero(form.state.shape))
    stages = _named(form, known)
    return BackwardForm(output_seed, state_seed, tuple(gradients), state, stages)


def seed_name(spec: OpSpec, stage: str) -> str:
    """Name of the cotangent of a stage, distinct from the spec's own names."""
    name = f"d{stage}"
    taken = {*chunk_inputs(spec), *(s.name for s in spec.stages)}
    while name in taken:
        name += "_"
    return name


def _named(form: Form, known: Mapping[Node, Node]) -> tuple[tuple[str, Node], ...]:
    """Stages between the inputs and the results, and their cotangents."""
    inner = [(name, node) for name, node in form.stages if node not in (form.output, form.state)]
    return (*inner, *((f"d{name}", known[node]) for name, node in inner if node in known))
