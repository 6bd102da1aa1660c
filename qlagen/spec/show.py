"""Text forms: an expression without needless parentheses, and a whole spec with its types."""

from __future__ import annotations

from qlagen.spec.model import Binary, Call, Expression, Input, Integer, Name, Negate, OpSpec, Shape, Stage, Transpose

_SUM, _PRODUCT, _UNARY, _POSTFIX = 1, 2, 3, 4


def format_shape(shape: Shape) -> str:
    return f"[{shape[0]}, {shape[1]}]"


def format_expression(expression: Expression) -> str:
    """The expression as spec text. Parsing the result gives the same expression again."""
    return _format(expression)[0]


def _format(expression: Expression) -> tuple[str, int]:
    """Text and binding strength."""
    match expression:
        case Name():
            return expression.name, _POSTFIX
        case Integer():
            return str(expression.value), _POSTFIX
        case Negate():
            return "-" + _wrap(expression.operand, _UNARY), _UNARY
        case Transpose():
            return _wrap(expression.operand, _POSTFIX) + "^T", _POSTFIX
        case Binary():
            strength = _SUM if expression.operator in "+-" else _PRODUCT
            left, right = _wrap(expression.left, strength), _wrap(expression.right, strength + 1)
            if _mixes_products(expression.operator, expression.left):
                left = f"({left})"
            return f"{left} {expression.operator} {right}", strength
        case Call():
            arguments = ", ".join(format_expression(argument) for argument in expression.arguments)
            return f"{expression.function}({arguments})", _POSTFIX


def _mixes_products(operator: str, left: Expression) -> bool:
    """``(Q @ K^T) * D``: the parentheses change nothing, but spare the reader the rule that * and @ bind alike."""
    return isinstance(left, Binary) and {operator, left.operator} == {"*", "@"}


def _wrap(expression: Expression, least: int) -> str:
    text, strength = _format(expression)
    return text if strength >= least else f"({text})"


def show_spec(spec: OpSpec) -> str:
    """The spec as stable text: declarations with both shapes of every symbol, then typed recurrence and stages."""
    sizes = ", ".join(f"{name} = {size}" for name, size in spec.dims)
    lines = [f"spec {spec.name}", f"  chunk {', '.join(map(str, spec.chunk))}; {sizes}", f"  state {spec.state} [K, V]"]
    lines += [f"  steps {spec.steps}: {spec.step_rows} rows a chunk"] if spec.steps else []
    lines += ["inputs", *(_input_line(spec, entry) for entry in spec.inputs)]
    lines += ["recurrence (one token)", *map(_stage_line, spec.recurrence)]
    lines += [f"step (one of {spec.steps} of a token)", *map(_stage_line, spec.step)] if spec.step else []
    lines += ["stages (one chunk)", *map(_stage_line, spec.stages)]
    lines += ["outputs", f"  o = {spec.output}", f"  state_out = {spec.state_output}"]
    lines += ["gradients", f"  {', '.join(spec.gradients) or 'none'}"]
    return "\n".join(lines) + "\n"


def _input_line(spec: OpSpec, entry: Input) -> str:
    heads = {"key": spec.head_names[0], "value": spec.head_names[1], "none": "none"}[entry.heads]
    chunk, token = (spec.rows_of(entry), entry.width), (entry.width, "1")
    facts = [f"heads {heads}", entry.dtype, f"chunk {entry.chunk_symbol} {format_shape(chunk)}"]
    facts += [f"token {entry.token_symbol} {format_shape(token)}"]
    facts += ["one for each step"] if entry.per_step else []
    facts += ["log gate"] if entry.role == "log_gate" else []
    low, high = entry.range
    facts += [f"range [{_bound(low, '-inf')}, {_bound(high, 'inf')}]"] if (low, high) != (None, None) else []
    facts += [f"norm <= {entry.norm:g}"] if entry.norm is not None else []
    facts += [f"default {entry.default}"] if entry.default is not None else []
    return f"  {entry.name}: " + "; ".join(facts)


def _bound(bound: float | None, unbounded: str) -> str:
    return unbounded if bound is None else f"{bound:g}"


def _stage_line(stage: Stage) -> str:
    return f"  {stage.name} {format_shape(stage.expression.shape)} = {format_expression(stage.expression)}"
