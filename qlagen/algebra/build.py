"""From the typed expressions of a spec file to expressions in normal form."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qlagen.algebra.derivation import Form
from qlagen.algebra.ir import (
    Node,
    before,
    decay,
    each,
    from_start,
    gdot,
    input_node,
    inverse,
    last,
    linear,
    mask,
    matmul,
    multiply,
    negate,
    ones,
    to_end,
    total,
    transpose,
)
from qlagen.errors import QlagenError
from qlagen.spec.model import Binary, Call, Expression, Integer, Name, Negate, OpSpec, Stage, Transpose

FUNCTIONS: dict[str, Callable[..., Node]] = {
    "inv_unit_lower": inverse,
    "tril": lambda x: multiply(mask("lower", x.shape), x),
    "stril": lambda x: multiply(mask("strict", x.shape), x),
    "decay": decay,
    "from_start": from_start,
    "to_end": to_end,
    "total": total,
    "before": before,
    "gdot": gdot,
    "each": each,
    "last": last,
}
"""`each` also takes the symbol of its rows."""


_STATE_SHAPE = ("K", "V")


def chunk_inputs(spec: OpSpec) -> dict[str, Node]:
    """Chunk symbol to node: [C, K] or [C, V] for vectors, [C, 1] for numbers, [1, 1] without heads; the state. What is
    given for each step of a token has a row per step."""
    nodes = {i.chunk_symbol: input_node(i.chunk_symbol, (spec.rows_of(i), i.width)) for i in spec.inputs}
    return nodes | {spec.state: _state(spec)}


def token_inputs(spec: OpSpec) -> dict[str, Node]:
    """Token symbol to node: column vectors [K, 1] or [V, 1], numbers [1, 1]; the state."""
    nodes = {i.token_symbol: input_node(i.token_symbol, (i.width, "1")) for i in spec.inputs}
    return nodes | {spec.state: _state(spec)}


def build_form(spec: OpSpec, replaced: Mapping[str, Node] | None = None) -> Form:
    """The textbook form: the spec's ``[stages]`` as written, but with other expressions for those in `replaced`."""
    stages = _build_stages(spec.stages, chunk_inputs(spec), replaced or {})
    return Form(stages[spec.output], stages[spec.state_output], tuple(stages.items()))


def build_recurrence(spec: OpSpec, steps: int | None = None) -> tuple[Node, Node]:
    """The token recurrence, the spec's ground truth: the output ``o``, [V, 1], and the next state, [K, V].

    Where a token has several steps they are written out, `steps` of them (the spec's number by default): what is given
    for each has the names of `step_symbol`.
    """
    names = token_inputs(spec)
    if not spec.step:
        lines = _build_stages(spec.recurrence, names, {})
        return lines["o"], lines[spec.next_state]
    cut = 1 + [line.name for line in spec.recurrence].index(spec.first_state)
    lines = _build_stages(spec.recurrence[:cut], names, {})
    state = lines[spec.first_state]
    per_step = [i.token_symbol for i in spec.inputs if i.per_step]
    for index in range(steps or dict(spec.dims)[spec.steps]):
        given = {name: input_node(step_symbol(name, index), names[name].shape) for name in per_step}
        state = _build_stages(spec.step, {**names, **given, spec.state: state}, {})[spec.next_state]
    lines = _build_stages(spec.recurrence[cut:], {**names, **lines, spec.next_state: state}, {}) | lines
    return lines["o"], state


def step_symbol(name: str, index: int) -> str:
    """What the recurrence calls a token symbol that is given for each step, in step `index`."""
    return f"{name}.{index}"


def _state(spec: OpSpec) -> Node:
    return input_node(spec.state, _STATE_SHAPE)


def _build_stages(
    stages: tuple[Stage, ...], names: Mapping[str, Node], replaced: Mapping[str, Node]
) -> dict[str, Node]:
    built: dict[str, Node] = {}
    for stage in stages:
        other = replaced.get(stage.name)
        built[stage.name] = build_expression(stage.expression, {**names, **built}) if other is None else other
    return built


def build_expression(expression: Expression, names: Mapping[str, Node]) -> Node:
    """One typed expression in normal form; `names` has a node for every name in it."""

    def build(e: Expression) -> Node:
        if isinstance(e, Name):
            return names[e.name]
        if isinstance(e, Integer):
            return linear(((e.value, ones(e.shape)),))
        if isinstance(e, Negate):
            return negate(build(e.operand))
        if isinstance(e, Transpose):
            return transpose(build(e.operand))
        if isinstance(e, Call):
            return _call(e, [build(a) for a in e.arguments])
        return _binary(e, build(e.left), build(e.right))

    return build(expression)


def _call(call: Call, arguments: list[Node]) -> Node:
    try:
        if call.function == "each":
            return each(arguments[0], call.shape[0])
        return FUNCTIONS[call.function](*arguments)
    except ValueError as fault:  # only the inverse has a demand that typing may see less sharply than the normal form
        raise QlagenError("E-STRUCT", f"{call.function}: {fault}", span=call.span) from None


def _binary(e: Binary, left: Node, right: Node) -> Node:
    if e.operator == "@":
        return matmul(left, right)
    if e.operator == "*":
        return multiply(left, right)
    return linear(((1, left), (1 if e.operator == "+" else -1, right)))
