"""From a derivation to the kernels of an operator: one that prepares chunks in parallel, one that walks them."""

from __future__ import annotations

from collections.abc import Mapping

from qlagen.algebra.derivation import Derivation, Form
from qlagen.algebra.ir import Node, transpose
from qlagen.program.check import check_plan
from qlagen.program.hoist import hoist
from qlagen.program.ir import Carry, Plan, Program, Store, Tensor
from qlagen.program.leaves import Leaves, carried_leaves, check_gates, chunk_tensors, gate_names, prepare_leaves
from qlagen.program.lower import Lowering, below
from qlagen.program.place_scales import place_scales
from qlagen.spec.model import OpSpec


def build_plan(derivation: Derivation) -> Plan:
    """The kernels of the chosen form, in launch order.

    ``prepare``, chunks in parallel, makes cumulative gates and inverses, if there are any; ``forward`` carries the
    state from chunk to chunk and makes everything else. Raises E-PROGRAM for a form that tile operations cannot
    express.
    """
    spec = derivation.spec
    check_gates(spec)
    form = place_scales(derivation.chosen, spec.state)
    gates = frozenset(item.chunk_symbol for item in spec.inputs if item.role == "log_gate")
    hoisted = hoist(form, spec.state, gates)
    stages = {node: name for name, node in form.stages}
    tensors = chunk_tensors(spec, hoisted, stages)
    programs = [_prepare(spec, form, tensors)] if tensors else []
    programs.append(_forward(spec, form, tensors))
    plan = Plan(spec.name, (("C", derivation.proof.chunk), *spec.dims), tuple(programs))
    check_plan(plan)
    return plan


def _prepare(spec: OpSpec, form: Form, tensors: Mapping[Node, Tensor]) -> Program:
    roots = tuple(tensors)
    lowering = _lower(spec, form, prepare_leaves(spec), roots)
    stores = tuple(Store(tensor, lowering.root(node)) for node, tensor in tensors.items())
    return Program("prepare", spec.name, None, lowering.operations, stores, lowering.scalars)


def _forward(spec: OpSpec, form: Form, tensors: Mapping[Node, Tensor]) -> Program:
    origins = {node: name for name, node in form.stages}
    roots = (form.output, form.state)
    lowering = _lower(spec, form, carried_leaves(spec, tensors, origins), roots)
    output = Tensor("o", ("C", "V"), "data", "value", "token")
    carry = Carry(spec.state, form.state.shape, lowering.root(form.state))
    stores = (Store(output, lowering.root(form.output)),)
    return Program("forward", spec.name, carry, lowering.operations, stores, lowering.scalars)


def _lower(spec: OpSpec, form: Form, leaves: Leaves, roots: tuple[Node, ...]) -> Lowering:
    """Everything below the roots, stage after stage."""
    computed = below(roots, leaves)
    ready = {*leaves, *map(transpose, leaves)}
    stages = {node: name for name, node in form.stages if node in computed and node not in ready}
    lowering = Lowering(spec, leaves, stages, gate_names(spec), roots)
    for node in (*stages, *roots):
        lowering.value(node)
    return lowering
