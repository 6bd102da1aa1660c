"""From a derivation to the kernels of an operator: one that prepares chunks in parallel, one that walks them."""

from __future__ import annotations

from collections.abc import Mapping

from qlagen.algebra.derivation import Derivation, Form
from qlagen.algebra.ir import Node, topological, transpose
from qlagen.program.check import check_plan
from qlagen.program.hoist import hoist
from qlagen.program.ir import Carry, Plan, Program, Store, Tensor
from qlagen.program.kernels import check_kernels
from qlagen.program.leaves import Leaves, carried_leaves, chunk_tensors, gate_names, prepare_leaves
from qlagen.program.lower import Lowering, below
from qlagen.program.place_scales import place_scales
from qlagen.spec.model import OpSpec


def build_plan(derivation: Derivation) -> Plan:
    """The kernels of the chosen form, in launch order.

    ``prepare``, chunks in parallel, makes cumulative gates and inverses, if there are any; ``forward`` carries the
    state from chunk to chunk and makes everything else. Raises E-UNSUPPORTED for an operator that kernels cannot run
    yet, and E-PROGRAM for a form that tile operations cannot express.
    """
    check_kernels(derivation.spec, derivation.chosen)
    return plan_programs(derivation)


def plan_programs(derivation: Derivation) -> Plan:
    """The same programs, whether kernels can run them or not: what the portable implementation spells in torch.

    Raises E-PROGRAM.
    """
    spec = derivation.spec
    form = place_scales(derivation.chosen, spec.state)
    gates = frozenset(item.chunk_symbol for item in spec.inputs if item.role == "log_gate")
    hoisted = hoist(form, spec.state, gates)
    stages = {node: name for name, node in form.stages}
    origins = _first_stages(form)
    tensors = chunk_tensors(spec, hoisted, stages, origins)
    programs = [_prepare(spec, form, tensors, origins)] if tensors else []
    programs.append(_forward(spec, form, tensors, origins))
    rows = {"C": derivation.proof.chunk, **dict(spec.dims)}
    rows[spec.step_rows] = spec.sizes(derivation.proof.chunk)[spec.step_rows]
    plan = Plan(spec.name, tuple(rows.items()), tuple(programs))
    check_plan(plan)
    return plan


def _first_stages(form: Form) -> dict[Node, str]:
    """Every expression, and its transpose, with the first stage in which it occurs."""
    found: dict[Node, str] = {}
    for name, stage in form.stages:
        for node in topological((stage,)):
            found.setdefault(node, name)
            found.setdefault(transpose(node), name)
    return found


def _prepare(spec: OpSpec, form: Form, tensors: Mapping[Node, Tensor], origins: Mapping[Node, str]) -> Program:
    lowering = _lower(spec, form, prepare_leaves(spec), tuple(tensors), origins)
    stores = tuple(Store(tensor, lowering.root(node)) for node, tensor in tensors.items())
    return Program("prepare", spec.name, None, lowering.operations, stores, lowering.scalars)


def _forward(spec: OpSpec, form: Form, tensors: Mapping[Node, Tensor], origins: Mapping[Node, str]) -> Program:
    of_matrices = {node: name for node, name in origins.items() if node.shape[0] == node.shape[1]}
    leaves = carried_leaves(spec, tensors, of_matrices)
    lowering = _lower(spec, form, leaves, (form.output, form.state), origins)
    output = Tensor("o", ("C", "V"), "data", "value", "token")
    carry = Carry(spec.state, form.state.shape, lowering.root(form.state))
    stores = (Store(output, lowering.root(form.output)),)
    return Program("forward", spec.name, carry, lowering.operations, stores, lowering.scalars)


def _lower(spec: OpSpec, form: Form, leaves: Leaves, roots: tuple[Node, ...], origins: Mapping[Node, str]) -> Lowering:
    """Everything below the roots, stage after stage; the next state, which replaces its predecessor, comes last."""
    computed = below(roots, leaves)
    ready = {*leaves, *map(transpose, leaves)}
    stages = {node: name for name, node in form.stages if node not in ready}
    lowering = Lowering(spec, leaves, stages, gate_names(spec), roots)
    ordered = [node for node in stages if node in computed and node is not form.state]
    for node in (*ordered, *roots):
        with lowering.within(origins.get(node, "")):
            lowering.value(node)
    return lowering
