"""From a derivation to the kernels of an operator: one that prepares chunks in parallel, one that walks them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from qlagen.algebra.build import chunk_inputs
from qlagen.algebra.context_parallel import split_rule, state_forms
from qlagen.algebra.derivation import Derivation, Form
from qlagen.algebra.ir import Node, topological, transpose
from qlagen.program.check import check_plan
from qlagen.program.hoist import hoist
from qlagen.program.ir import Carry, Plan, Program, Segment, Store, Tensor
from qlagen.program.kernels import check_kernels
from qlagen.program.leaves import Leaves, carried_leaves, chunk_tensors, gate_names, prepare_leaves
from qlagen.program.lower import Lowering, below
from qlagen.program.move_scales import Move, find_moves, read_scaled, store_scaled
from qlagen.program.place_scales import place_scales
from qlagen.program.segment import batch_obstacle
from qlagen.spec.model import OpSpec


def build_plan(derivation: Derivation) -> Plan:
    """The kernels of the chosen form, in launch order.

    ``prepare``, chunks in parallel, makes cumulative gates and inverses, if there are any; ``forward`` carries the
    state from chunk to chunk and makes everything else. Raises E-UNSUPPORTED for an operator that kernels cannot run
    yet, and E-PROGRAM for a form that tile operations cannot express.
    """
    check_kernels(derivation.spec, derivation.chosen)
    plan = replace(plan_programs(derivation), segment_forms=segment_programs(derivation))
    check_plan(plan)
    return plan


def plan_programs(derivation: Derivation) -> Plan:
    """The same programs, whether kernels can run them or not: what the portable implementation spells in torch.

    Raises E-PROGRAM.
    """
    spec = derivation.spec
    form = place_scales(derivation.chosen, spec.state)
    origins = _first_stages(form)
    tensors = _prepared(spec, form, origins)
    programs, sizes = _unmoved(spec, form, tensors, origins), _sizes(derivation)
    plan = Plan(spec.name, tuple(sizes.items()), _with_moves(programs, _moves(programs, sizes)))
    check_plan(plan)
    return plan


def segment_programs(derivation: Derivation) -> tuple[Program, ...]:
    """Forms of the walk that makes a segment's map: the chosen form's next state without the read-outs, and the forms
    with fewer products where what an earlier program prepares is at hand. None when a sequence cannot be cut."""
    spec = derivation.spec
    rule = split_rule(derivation)
    if rule is None:
        return ()
    form = place_scales(derivation.chosen, spec.state)
    origins = _first_stages(form)
    tensors = _prepared(spec, form, origins)
    nodes = {item.token_symbol: chunk_inputs(spec)[item.chunk_symbol] for item in spec.inputs}
    bound = tensors.get(nodes[rule.gate]) if rule.granted and rule.bound == "log_gate_sum" else None
    segment = Segment(bound, rule.condition)
    states = (form.state, *(found.state for found in state_forms(derivation, form.state, tuple(tensors))))
    programs = (_segment(spec, replace(form, state=state), tensors, segment) for state in dict.fromkeys(states))
    moves = _moves(_unmoved(spec, form, tensors, origins), _sizes(derivation))
    return tuple(program for program in _reading(programs, moves) if not batch_obstacle(program))


def moved_scales(derivation: Derivation) -> dict[Node, Move]:
    """Expressions that are handed over with their columns scaled."""
    spec = derivation.spec
    form = place_scales(derivation.chosen, spec.state)
    origins = _first_stages(form)
    tensors = _prepared(spec, form, origins)
    moves = {move.tensor: move for move in _moves(_unmoved(spec, form, tensors, origins), _sizes(derivation))}
    return {node: moves[tensor] for node, tensor in tensors.items() if tensor in moves}


def _unmoved(
    spec: OpSpec, form: Form, tensors: Mapping[Node, Tensor], origins: Mapping[Node, str]
) -> tuple[Program, ...]:
    """The programs with every scale where the form has it."""
    prepare = (_prepare(spec, form, tensors, origins),) if tensors else ()
    return (*prepare, _forward(spec, form, tensors, origins))


def _sizes(derivation: Derivation) -> dict[str, int]:
    spec, chunk = derivation.spec, derivation.proof.chunk
    return {"C": chunk, **dict(spec.dims), spec.step_rows: spec.sizes(chunk)[spec.step_rows]}


def _moves(programs: Sequence[Program], sizes: Mapping[str, int]) -> tuple[Move, ...]:
    *ahead, walk = programs
    return find_moves(ahead[0], walk, sizes) if ahead else ()


def _with_moves(programs: tuple[Program, ...], moves: tuple[Move, ...]) -> tuple[Program, ...]:
    """Both programs, as the moves leave them."""
    for move in moves:
        prepare, walk = programs
        scaled, read = store_scaled(prepare, move), read_scaled(walk, move)
        assert scaled is not None
        assert read is not None
        programs = (scaled, read)
    return programs


def _reading(programs: Iterable[Program], moves: tuple[Move, ...]) -> Iterator[Program]:
    """Walks as the moves leave them, without those that cannot read what is stored then."""
    for program in programs:
        read: Program | None = program
        for move in moves:
            read = None if read is None else read_scaled(read, move)
        if read is not None:
            yield read


def _prepared(spec: OpSpec, form: Form, origins: Mapping[Node, str]) -> dict[Node, Tensor]:
    """What the first program stores for the others."""
    gates = frozenset(item.chunk_symbol for item in spec.inputs if item.role == "log_gate")
    stages = {node: name for name, node in form.stages}
    return chunk_tensors(spec, hoist(form, spec.state, gates), stages, origins)


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


def _segment(spec: OpSpec, form: Form, tensors: Mapping[Node, Tensor], segment: Segment) -> Program:
    """The walk that makes `form.state` and nothing else."""
    stages = tuple((name, form.state if name == spec.state_output else node) for name, node in form.stages)
    form = place_scales(replace(form, stages=stages), spec.state)
    lowering = _lower(spec, form, carried_leaves(spec, tensors, {}), (form.state,), _first_stages(form))
    carry = Carry(spec.state, form.state.shape, lowering.root(form.state))
    return Program("segment", spec.name, carry, lowering.operations, (), lowering.scalars, segment)


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
