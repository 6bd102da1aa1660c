"""The ``[recurrence]`` and ``[stages]`` tables: named expressions, each over the symbols and the lines above it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from qlagen.errors import QlagenError, did_you_mean
from qlagen.spec.document import Document
from qlagen.spec.fields import Table
from qlagen.spec.functions import FUNCTIONS
from qlagen.spec.model import Binary, Call, Expression, Input, Name, Negate, Shape, Stage, Transpose
from qlagen.spec.parser import parse_expression
from qlagen.spec.show import format_shape
from qlagen.spec.tokens import NAME_PATTERN
from qlagen.spec.typing import Scope, Symbol

STATE_SHAPE: Shape = ("K", "V")
TOKEN_OUTPUT_SHAPE: Shape = ("V", "1")
CHUNK_OUTPUT_SHAPE: Shape = ("C", "V")


def token_scope(inputs: tuple[Input, ...], state: str, document: Document, steps: str = "") -> Scope:
    """Symbols of one token: numbers [1, 1], columns [K, 1] and [V, 1], the state before the token. Where a token has
    several `steps`, what is given for each belongs to `step_scope`."""
    given = tuple(entry for entry in inputs if not entry.per_step)
    hints = {e.token_symbol: f"it is given for each of {steps} steps: use it in [step]" for e in inputs if e.per_step}
    return _one_token("[recurrence]", given, state, document, hints)


def step_scope(inputs: tuple[Input, ...], state: str, document: Document) -> Scope:
    """Symbols of one step of a token: as those of a token, of all inputs; the state is the one before the step."""
    return _one_token("[step]", inputs, state, document, {})


def _one_token(
    title: str, inputs: tuple[Input, ...], state: str, document: Document, other_hints: dict[str, str]
) -> Scope:
    symbols = {state: Symbol(STATE_SHAPE)}
    hints = dict(other_hints)
    for entry in inputs:
        _define(symbols, entry.token_symbol, Symbol((entry.width, "1")), entry, document)
        if entry.role == "log_gate":
            hints[entry.name] = f"the log gate {entry.name} enters the recurrence as its decay {entry.token_symbol}"
        if entry.chunk_symbol != entry.token_symbol:
            hints[entry.chunk_symbol] = f"{title} is about one token: write {entry.token_symbol}"
    return Scope(title, symbols, hints=hints)


def chunk_scope(inputs: tuple[Input, ...], state: str, document: Document, steps: str = "") -> Scope:
    """Symbols of one chunk: tokens are rows, [C, width], or the `steps` of tokens; the state is the one before it."""
    symbols = {state: Symbol(STATE_SHAPE)}
    hints: dict[str, str] = {}
    for entry in inputs:
        rows = "1" if entry.heads == "none" else f"C{steps}" if entry.per_step else "C"
        symbol = Symbol((rows, entry.width), log_gate=entry.role == "log_gate")
        _define(symbols, entry.chunk_symbol, symbol, entry, document)
        if entry.chunk_symbol != entry.name:
            hints[entry.name] = f"[stages] is about a whole chunk: write {entry.chunk_symbol}"
        if entry.role == "log_gate":
            gate = entry.chunk_symbol
            atom = f"decay({gate})" if entry.width == "1" else f"gdot(X, Y, {gate})"
            hints[entry.token_symbol] = f"in [stages] use {atom}, from_start({gate}), to_end({gate}), total({gate})"
    return Scope("[stages]", symbols, hints=hints, step_rows=f"C{steps}" if steps else "")


def _define(symbols: dict[str, Symbol], name: str, symbol: Symbol, entry: Input, document: Document) -> None:
    if name in symbols or name in FUNCTIONS:
        taken = "a function" if name in FUNCTIONS else "another input or the state"
        message = f"the input {entry.name!r} is written {name!r}, and that is already {taken}"
        raise QlagenError("E-REDEF", message, span=entry.span, hints=["rename one of the two"])
    symbols[name] = symbol


def read_lines(
    table: Table, scope: Scope, required: tuple[str, ...] = (), after: tuple[str, str] | None = None
) -> tuple[Stage, ...]:
    """Parse every line in file order; `after` names a line and what lines below it may use, a state made elsewhere.

    Raises E-MISSING, E-VALUE, E-REDEF, E-TYPE and all expression errors.
    """
    stages: list[Stage] = []
    symbols = dict(scope.symbols)
    names = list(table.values)
    for name in required:
        if name not in table.values:
            message = f"the line {name!r} is missing in {table.title}"
            span = table.document.key_span(table.path)
            raise QlagenError("E-MISSING", message, span=span, hints=did_you_mean(name, names))
    for index, name in enumerate(names):
        _check_new_name(table, name, symbols)
        if after is not None and name == after[1]:
            message = f"{name!r} in {table.title} is already the state after the steps, which [step] makes"
            raise QlagenError("E-REDEF", message, span=table.key_span(name), hints=["move the line to [step]"])
        source = table.document.source((*table.path, name), table.string(name))
        line = replace(scope, symbols=symbols, line=name, later=frozenset(names[index + 1 :]))
        typed = parse_expression(source, line)
        stages.append(Stage(name, typed.node, source.text, table.key_span(name)))
        symbols[name] = Symbol(typed.node.shape, typed.structure)
        if after is not None and name == after[0]:
            symbols[after[1]] = Symbol(STATE_SHAPE)
    return tuple(stages)


def _check_new_name(table: Table, name: str, symbols: dict[str, Symbol]) -> None:
    if not re.fullmatch(NAME_PATTERN, name):
        message = f"{name!r} is not a name: letters, digits and _, then at most one prime"
        raise QlagenError("E-VALUE", message, span=table.key_span(name))
    if name in symbols or name in FUNCTIONS:
        what = "a function" if name in FUNCTIONS else "an input or the state"
        message = f"{name!r} in {table.title} is already {what}"
        raise QlagenError("E-REDEF", message, span=table.key_span(name), hints=["choose another name for this line"])


def check_outputs(outputs: Table, stages: tuple[Stage, ...]) -> tuple[str, str]:
    """The stages that are the chunk's output and next state. Raises E-OUTPUT and E-SHAPE."""
    outputs.check_keys(("o", "state_out"))
    return (
        _output(outputs, "o", stages, CHUNK_OUTPUT_SHAPE),
        _output(outputs, "state_out", stages, STATE_SHAPE),
    )


def check_results(lines: Table, stages: tuple[Stage, ...], wanted: Mapping[str, Shape]) -> None:
    """Lines of a table that must have a given shape. Raises E-SHAPE."""
    shapes = {stage.name: stage.expression.shape for stage in stages}
    for name, shape in wanted.items():
        _check_shape(f"{name} in {lines.title}", shapes[name], shape, lines, name)


def _output(outputs: Table, key: str, stages: tuple[Stage, ...], wanted: Shape) -> str:
    name = outputs.string(key)
    shapes = {stage.name: stage.expression.shape for stage in stages}
    if name not in shapes:
        notes = [f"the stages are {', '.join(shapes) or 'none'}"]
        hints = did_you_mean(name, shapes)
        message = f"{key}: there is no stage {name!r}"
        raise QlagenError("E-OUTPUT", message, span=outputs.value_span(key), notes=notes, hints=hints)
    _check_shape(f"{key}: the stage {name!r}", shapes[name], wanted, outputs, key)
    return name


def _check_shape(what: str, got: Shape, wanted: Shape, table: Table, key: str) -> None:
    if got != wanted:
        message = f"{what} is {format_shape(got)}, must be {format_shape(wanted)}"
        raise QlagenError("E-SHAPE", message, span=table.value_span(key))


def check_used(inputs: tuple[Input, ...], state: str, title: str, used: set[str], spec: Table) -> None:
    """Every input and the state must reach an output; `used` are the names that do. Raises E-UNUSED."""
    for entry in inputs:
        symbol = entry.chunk_symbol if title == "[stages]" else entry.token_symbol
        if symbol not in used:
            message = f"the input {entry.name!r} is not used: in {title} no output depends on {symbol!r}"
            raise QlagenError("E-UNUSED", message, span=entry.span, hints=["use it or remove it from [inputs]"])
    if state not in used:
        message = f"the state {state!r} is not used: in {title} no output depends on it"
        raise QlagenError("E-UNUSED", message, span=spec.value_span("state"))


def used_names(lines: tuple[Stage, ...], roots: tuple[str, ...]) -> set[str]:
    """The names that the roots depend on, through lines or not, themselves included."""
    expressions = {line.name: line.expression for line in lines}
    used: set[str] = set()
    pending = list(roots)
    while pending:
        name = pending.pop()
        if name not in used:
            used.add(name)
            pending += names_in(expressions[name]) if name in expressions else []
    return used


def names_in(expression: Expression) -> list[str]:
    """The names that an expression mentions, left to right, with repetitions."""
    match expression:
        case Name():
            return [expression.name]
        case Negate() | Transpose():
            return names_in(expression.operand)
        case Binary():
            return names_in(expression.left) + names_in(expression.right)
        case Call():
            return [name for argument in expression.arguments for name in names_in(argument)]
        case _:
            return []
