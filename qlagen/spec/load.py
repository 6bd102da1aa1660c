"""Spec files to `OpSpec`: read, check every table, type every expression, check names, outputs and use."""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from qlagen.errors import QlagenError, Span, did_you_mean
from qlagen.spec.document import Document, read_document, read_text
from qlagen.spec.fields import Table, type_name
from qlagen.spec.inputs import read_input
from qlagen.spec.lines import (
    STATE_SHAPE,
    TOKEN_OUTPUT_SHAPE,
    check_outputs,
    check_results,
    check_used,
    chunk_scope,
    read_lines,
    step_scope,
    token_scope,
    used_names,
)
from qlagen.spec.model import Input, OpSpec, Stage

FORMAT = 1
"""The format version that this release reads."""

TABLES = ("spec", "dims", "heads", "inputs", "recurrence", "stages", "outputs", "grad")
STEP_TABLE = "step"
"""What only an operator with several steps per token has."""
MAX_CHUNK = 256
MAX_DIM = 4096
MAX_TEXT = 200


def load_specs(paths: Iterable[str | Path]) -> tuple[OpSpec, ...]:
    """Load several spec files, in the order given. Raises E-DUPLICATE when two define the same operator."""
    specs: dict[str, OpSpec] = {}
    for path in paths:
        spec = load_spec(path)
        if spec.name in specs:
            message = f"the operator {spec.name!r} is already defined by {specs[spec.name].file}"
            raise QlagenError("E-DUPLICATE", message, span=Span(spec.file, 1, 1), hints=["rename one in [spec]"])
        specs[spec.name] = spec
    return tuple(specs.values())


def load_spec(path: str | Path) -> OpSpec:
    """Load one spec file. Raises E-FILE when it cannot be read, and all that `parse_spec` raises."""
    return parse_spec(read_text(path, "spec"), str(path))


def parse_spec(text: str, file: str) -> OpSpec:
    """Parse a spec's text; `file` is the name that messages show. Raises QlagenError, nothing else,
    with one of the codes of `qlagen.spec.codes`."""
    document = read_document(text, file)
    _check_format(document)
    top = _check_tables(document)
    spec, grad = top.table("spec"), top.table("grad")
    spec.check_keys(("format", "name", "state", "chunk"), ("summary", "references", "steps"))
    grad.check_keys(("wrt",))
    state = _identifier(spec, "state")
    dims = _dims(top.table("dims"))
    heads = _heads(top.table("heads"))
    names = tuple(name for name, _ in dims)
    steps = _steps(top, spec, names)
    tables = top.table("inputs")
    inputs = tuple(read_input(tables.table(name), names, heads, steps) for name in tables.values)
    if steps and not any(entry.per_step for entry in inputs):
        message = f"no input has a value for each of the {steps} steps of a token"
        hints = [f'give one of [inputs] a shape such as ["{steps}", "K"]']
        raise QlagenError("E-UNUSED", message, span=spec.value_span("steps"), hints=hints)
    recurrence, step = _read_recurrence(top, inputs, state, steps)
    stages = read_lines(top.table("stages"), chunk_scope(inputs, state, document, steps))
    outputs = check_outputs(top.table("outputs"), stages)
    check_used(inputs, state, "[recurrence]", _used_by_token(recurrence, step, state), spec)
    check_used(inputs, state, "[stages]", used_names(stages, outputs), spec)
    return OpSpec(
        name=_operator_name(spec),
        file=file,
        digest=hashlib.sha256(document.text.encode("utf-8", "surrogatepass")).hexdigest(),
        state=state,
        chunk=_chunk(spec),
        dims=dims,
        inputs=inputs,
        recurrence=recurrence,
        stages=stages,
        output=outputs[0],
        state_output=outputs[1],
        gradients=_gradients(grad, inputs, state),
        head_names=heads,
        summary=_line_of_text(spec, "summary", spec.string("summary")) if "summary" in spec.values else "",
        references=_references(spec) if "references" in spec.values else (),
        steps=steps,
        step=step,
    )


def _read_recurrence(
    top: Table, inputs: tuple[Input, ...], state: str, steps: str
) -> tuple[tuple[Stage, ...], tuple[Stage, ...]]:
    """The lines of ``[recurrence]``, and those of ``[step]`` where a token has several steps."""
    lines, document = top.table("recurrence"), top.document
    first, after = f"{state}_start", f"{state}_next"
    scope = token_scope(inputs, state, document, steps)
    if not steps:
        recurrence = read_lines(lines, scope, required=(after, "o"))
        check_results(lines, recurrence, {after: STATE_SHAPE, "o": TOKEN_OUTPUT_SHAPE})
        return recurrence, ()
    scope = replace(scope, hints={after: f"the state after the steps: use it below the line {first}", **scope.hints})
    recurrence = read_lines(lines, scope, required=(first, "o"), after=(first, after))
    check_results(lines, recurrence, {first: STATE_SHAPE, "o": TOKEN_OUTPUT_SHAPE})
    inner = top.table(STEP_TABLE)
    step = read_lines(inner, step_scope(inputs, state, document), required=(after,))
    check_results(inner, step, {after: STATE_SHAPE})
    return recurrence, step


def _used_by_token(recurrence: tuple[Stage, ...], step: tuple[Stage, ...], state: str) -> set[str]:
    """Names on which the token's output or its next state depends."""
    after = f"{state}_next"
    if not step:
        return used_names(recurrence, (after, "o"))
    # Within a step the state's name is that of the state before the step: only the token's own lines count for it.
    return used_names(recurrence, (f"{state}_start", "o")) | (used_names(step, (after,)) - {state})


def _steps(top: Table, spec: Table, dims: tuple[str, ...]) -> str:
    """The dimension that counts a token's steps, or nothing. Raises E-DIM, E-MISSING, E-TABLE and E-VALUE."""
    if "steps" not in spec.values:
        if STEP_TABLE in top.values:
            message = f"the table [{STEP_TABLE}] is for an operator with several steps per token"
            span = top.document.key_span((STEP_TABLE,))
            raise QlagenError("E-TABLE", message, span=span, hints=['add steps = "M" to [spec] and M to [dims]'])
        return ""
    steps = spec.string("steps")
    if steps not in dims or steps in ("K", "V"):
        message = f"steps names {steps!r}; it needs a dimension of its own, which [dims] declares"
        notes = [f"declared: {', '.join(dims)}; K and V are those of the state"]
        raise QlagenError("E-DIM", message, span=spec.value_span("steps"), notes=notes)
    if f"C{steps}" in dims:
        message = f"C{steps} is the number of steps in a chunk, so [dims] cannot declare it"
        raise QlagenError("E-VALUE", message, span=top.document.key_span(("dims", f"C{steps}")))
    if STEP_TABLE not in top.values:
        message = f"the table [{STEP_TABLE}] is missing"
        notes = [f"with steps = {steps!r} it says what one step does; [recurrence] says what is around the steps"]
        raise QlagenError("E-MISSING", message, span=spec.value_span("steps"), notes=notes)
    return steps


def _check_tables(document: Document) -> Table:
    for name, value in document.data.items():
        if name not in (*TABLES, STEP_TABLE):
            what = "table" if isinstance(value, dict) else "top-level key"
            raise QlagenError(
                "E-TABLE",
                f"unknown {what} {name!r}",
                span=document.key_span((name,)),
                notes=[f"the tables are {', '.join(f'[{table}]' for table in TABLES)}"],
                hints=did_you_mean(name, TABLES),
            )
        if not isinstance(value, dict):
            message = f"{name} must be a table, got {type_name(value)}"
            raise QlagenError("E-TYPE", message, span=document.key_span((name,)), hints=[f"write [{name}]"])
    for name in TABLES:
        if name not in document.data:
            message = f"the table [{name}] is missing"
            notes = [f"required: {', '.join(f'[{table}]' for table in TABLES)}"]
            raise QlagenError("E-MISSING", message, span=Span(document.file, 1, 1), notes=notes)
    return Table(document, (), document.data)


def _check_format(document: Document) -> None:
    """The version comes first: another version may have other tables and keys. Its absence is E-MISSING, later."""
    values = document.data.get("spec")
    if isinstance(values, dict) and "format" in values:
        spec = Table(document, ("spec",), values)
        version = spec.integer("format", 0, 10**9)
        if version != FORMAT:
            message = f"format {version} is not supported; this release reads format {FORMAT}"
            raise QlagenError("E-FORMAT", message, span=spec.value_span("format"))


def _operator_name(spec: Table) -> str:
    name = spec.string("name")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name) or keyword.iskeyword(name):
        message = f"{name!r} is not a lower-case identifier of at most 64 characters"
        raise spec.bad_value("name", message, ["it names a Python module and function, for example my_operator"])
    return name


def _identifier(table: Table, key: str) -> str:
    name = table.string(key)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{0,31}", name):
        raise table.bad_value(key, f"{name!r} is not a name of at most 32 letters and digits")
    return name


def _dims(table: Table) -> tuple[tuple[str, int], ...]:
    for name in table.values:
        if not re.fullmatch(r"[A-Z][A-Za-z0-9]{0,15}", name) or name == "C":
            message = f"a dimension symbol is a capital letter and up to 15 more letters or digits, got {name!r}"
            hints = ["C is the chunk length; its sizes stand in [spec].chunk"] if name == "C" else []
            raise QlagenError("E-VALUE", message, span=table.key_span(name), hints=hints)
    for name in ("K", "V"):
        if name not in table.values:
            message = f"[dims] must declare {name!r}"
            notes = ["the carried state is K x V"]
            raise QlagenError("E-MISSING", message, span=table.document.key_span(table.path), notes=notes)
    return tuple((name, table.integer(name, 1, MAX_DIM)) for name in table.values)


def _heads(table: Table) -> tuple[str, str]:
    table.check_keys(("key", "value"))
    key, value = _identifier(table, "key"), _identifier(table, "value")
    if key == value or "none" in (key, value):
        raise table.bad_value("value", "the two head counts need two different names, neither of them 'none'")
    return key, value


def _chunk(spec: Table) -> tuple[int, ...]:
    chunk = spec.integers("chunk", 1, MAX_CHUNK)
    if not chunk or len(set(chunk)) != len(chunk):
        raise spec.bad_value("chunk", "give at least one chunk length, and none twice", ["write for example [64]"])
    return chunk


def _references(spec: Table) -> tuple[str, ...]:
    return tuple(
        _line_of_text(spec, "references", text, index) for index, text in enumerate(spec.strings("references"))
    )


def _line_of_text(table: Table, key: str, text: str, index: int | None = None) -> str:
    """Free text ends up in docstrings: one printable line that cannot end them."""
    if not text or len(text) > MAX_TEXT or not text.isprintable() or '"' in text or "\\" in text:
        message = f"must be one printable line of 1 to {MAX_TEXT} characters without double quotes and backslashes"
        raise table.bad_value(key, message, (), index)
    return text


def _gradients(grad: Table, inputs: tuple[Input, ...], state: str) -> tuple[str, ...]:
    allowed = [*(entry.name for entry in inputs if entry.heads != "none"), state]
    names = grad.strings("wrt")
    for index, name in enumerate(names):
        span, message = grad.value_span("wrt", index), ""
        if name not in allowed:
            message = f"{name!r} is not a tensor input or the state"
        elif name in names[:index]:
            message = f"{name!r} is listed twice"
        if message:
            notes = [f"allowed: {', '.join(allowed)}"]
            hints = did_you_mean(name, allowed) if name not in allowed else ()
            raise QlagenError("E-GRAD", f"wrt: {message}", span=span, notes=notes, hints=hints)
    return names
