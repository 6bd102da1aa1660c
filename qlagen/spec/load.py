"""Spec files to `OpSpec`: read, check every table, type every expression, check names, outputs and use."""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Iterable
from pathlib import Path

from qlagen.errors import QlagenError, Span, did_you_mean
from qlagen.spec.document import Document, read_document
from qlagen.spec.fields import Table, type_name
from qlagen.spec.inputs import read_input
from qlagen.spec.lines import (
    check_outputs,
    check_used,
    chunk_scope,
    read_lines,
    token_scope,
)
from qlagen.spec.model import Input, OpSpec

FORMAT = 1
"""The format version that this release reads."""

TABLES = ("spec", "dims", "heads", "inputs", "recurrence", "stages", "outputs", "grad")
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
    file = str(path)
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"the file is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        raise QlagenError("E-FILE", message, span=Span(file, 1, 1)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise QlagenError("E-FILE", f"cannot read the spec file {file!r}: {reason}") from None
    return parse_spec(text, file)


def parse_spec(text: str, file: str) -> OpSpec:
    """Parse a spec's text; `file` is the name that messages show. Raises QlagenError, nothing else,
    with one of the codes of `qlagen.spec.codes`."""
    document = read_document(text, file)
    _check_format(document)
    top = _check_tables(document)
    spec, grad = top.table("spec"), top.table("grad")
    spec.check_keys(("format", "name", "state", "chunk"), ("summary", "references"))
    grad.check_keys(("wrt",))
    state = _identifier(spec, "state")
    dims = _dims(top.table("dims"))
    heads = _heads(top.table("heads"))
    names = tuple(name for name, _ in dims)
    inputs = tuple(read_input(top.table("inputs").table(name), names, heads) for name in top.table("inputs").values)
    tokens, chunks = token_scope(inputs, state, document), chunk_scope(inputs, state, document)
    recurrence = read_lines(top.table("recurrence"), tokens, required=(f"{state}_next", "o"))
    stages = read_lines(top.table("stages"), chunks)
    outputs = check_outputs(top.table("outputs"), stages, recurrence, f"{state}_next", top.table("recurrence"))
    check_used(inputs, state, "[recurrence]", recurrence, (f"{state}_next", "o"), spec)
    check_used(inputs, state, "[stages]", stages, outputs, spec)
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
    )


def _check_tables(document: Document) -> Table:
    for name, value in document.data.items():
        if name not in TABLES:
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
