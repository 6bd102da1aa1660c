"""The portable implementation of an operator: its programs spelled as torch functions on all chunks at once."""

from __future__ import annotations

import hashlib
import keyword
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import qlagen
from qlagen.algebra.derivation import Derivation
from qlagen.emit.portable_sections import Section, split_program
from qlagen.emit.templates import make_environment, template_root
from qlagen.program.dims import show_dims
from qlagen.program.ir import (
    Apply,
    Dims,
    ElementExpr,
    Elementwise,
    Gate,
    GatedDot,
    Gemm,
    Inverse,
    Load,
    Number,
    Operation,
    Ref,
    Rows,
    Scan,
)
from qlagen.program.plan import plan_programs
from qlagen.spec.model import Input, OpSpec

TEMPLATE = "portable.py.jinja"
WIDTH = 120
_TAKEN = ("torch", "runtime", "partial", "Tensor", "CHUNK", "forward")
_LOCAL = ("chunks", "dtype", "steps", "outputs", "values", "initial_state", "cu_seqlens")
_SIGNS = {"add": "+", "sub": "-", "mul": "*"}


@dataclass(frozen=True)
class FunctionView:
    """One function of the module: finished text."""

    signature: str
    summary: str
    lines: tuple[str, ...]
    result: str


@dataclass(frozen=True)
class PortableView:
    """What `portable.py.jinja` sees: finished text."""

    banner: str
    summary: str
    chunk: int
    functions: tuple[FunctionView, ...]
    uses_torch: bool
    uses_partial: bool
    signature: str
    argument_lines: tuple[str, ...]
    data_arguments: str
    leading: str
    heads_from: str
    body: tuple[str, ...]
    output_width: str
    state: str


def emit_portable(derivation: Derivation) -> str:
    """Text of ``qla_ops/portable/<operator>.py``.

    Its one public function is ``forward(<inputs in the spec's order>, initial_state=None, cu_seqlens=None)``, which
    returns (o, final_state). Scalars are Python numbers. The module imports torch and, beside it, ``runtime.py`` of the
    library's portable package.
    """
    plan = plan_programs(derivation)
    sections = [section for program in plan.programs for section in split_program(program)]
    view = _view(derivation.spec, dict(plan.dims)["C"], sections)
    return make_environment(template_root()).get_template(TEMPLATE).render(view=view)


# Spelling


def _identifier(name: str) -> str:
    """A name that hides nothing the module uses."""
    hides = name in (*_TAKEN, *_LOCAL) or keyword.iskeyword(name)
    return f"{name}_" if hides else name


def _names(names: Iterable[str]) -> list[str]:
    return [_identifier(name) for name in names]


def _bracketed(before: str, items: Sequence[str], after: str) -> str:
    """Comma-separated items between brackets: on one line, on one of their own, or one a line."""
    joined = ", ".join(items)
    if len(before) + len(joined) + len(after) + 4 <= WIDTH:
        return f"{before}{joined}{after}"
    if len(joined) + 8 <= WIDTH:
        return f"{before}\n    {joined}\n{after}"
    return "\n".join([before, *(f"    {item}," for item in items), after])


def _function(section: Section) -> FunctionView:
    tensors = ([section.carry.name] if section.carry else []) + list(section.inputs)
    parameters = [f"{name}: Tensor" for name in _names(tensors)]
    keywords = [f"{name}: float" for name in _names(section.scalars)]
    keywords += ["dtype: torch.dtype"] if section.needs_dtype else []
    keywords += ["steps: int"] if section.needs_steps else []
    count = len(section.results)
    returned = "Tensor" if count == 1 else f"tuple[{', '.join(['Tensor'] * count)}]"
    signature = [*parameters, *(["*", *keywords] if keywords else [])]
    lines = [text for operation in section.operations for text in _line(operation, section)]
    result = _names(section.results)
    return FunctionView(
        _bracketed(f"def {section.name}(", signature, f") -> {returned}:"),
        _summary(section),
        tuple(lines),
        f"return {result[0]}" if count == 1 else _tuple("return ", result),
    )


def _tuple(before: str, items: Sequence[str]) -> str:
    one_line = f"{before}{', '.join(items)}"
    text = one_line if len(one_line) + 4 <= WIDTH else _bracketed(f"{before}(", items, ")")
    return text.replace("\n", "\n    ")


def _summary(section: Section) -> str:
    if section.carry is None:
        return "All chunks at once: tensors are [slots, heads, ...]."
    dims = show_dims(section.carry.dims)[1:-1]
    name = _identifier(section.carry.name)
    return f"One chunk of every sequence that has it: {name} is [sequences, heads, {dims}]. Output, next {name}."


def _line(operation: Operation, section: Section) -> list[str]:
    text = f"{_identifier(operation.name)} = {_right_side(operation, section)}"
    comment = f"# spec: {operation.origin}" if operation.origin else ""
    if len(text) + len(comment) + 6 <= WIDTH or not comment:
        return [f"{text}  {comment}".rstrip()]
    return [comment, text]


def _right_side(operation: Operation, section: Section) -> str:
    match operation:
        case Load():
            raise ValueError("loads are parameters")
        case Scan():
            return f"{_identifier(operation.source)}.cumsum({_row_axis(operation.source, section)})"
        case Gate():
            return _gate(operation, section)
        case GatedDot():
            names = ", ".join(_names((operation.left, operation.right, operation.gate)))
            return f"runtime.gdot{'_before' if operation.exclusive else ''}({names})"
        case Rows():
            steps = "" if operation.kind == "before" else "steps, "
            axis = _row_axis(operation.source, section)
            return f"runtime.{operation.kind}({_identifier(operation.source)}, {steps}{axis})"
        case Inverse():
            columns = "" if operation.columns is None else f" * {_identifier(operation.columns)}[..., None, :]"
            return f"runtime.inv_unit_lower({_identifier(operation.source)}){columns}"
        case Gemm():
            left = _identifier(operation.left) + (".mT" if operation.transpose_left else "")
            right = _identifier(operation.right) + (".mT" if operation.transpose_right else "")
            return ("" if operation.add is None else f"{_identifier(operation.add)} + ") + f"{left} @ {right}"
        case Elementwise():
            return _expression(operation.expr, section.dims[operation.name], section)


def _row_axis(name: str, section: Section) -> int:
    """The axis of the rows, from the end."""
    return -len(section.dims[name])


def _gate(gate: Gate, section: Section) -> str:
    if gate.source is None:
        return f"runtime.{gate.kind}({_like(section, gate.rows)}, dtype)"
    source = _identifier(gate.source)
    if gate.kind == "decay":
        return f"runtime.decay{'_before' if gate.exclusive else ''}({source}, dtype)"
    axis = "" if gate.kind == "from_start" else f", {_row_axis(gate.source, section)}"
    return f"runtime.{gate.kind}({source}, dtype{axis})"


def _like(section: Section, side: str) -> str:
    """A matrix with as many rows as a mask: it gives the mask its size."""
    rows = [name for name in section.inputs if section.dims[name][:1] == (side,)]
    matrices = [name for name in rows if len(section.dims[name]) == 2]
    return _identifier(matrices[0]) if matrices else f"{_identifier(rows[0])}[..., None]"


def _expression(expr: ElementExpr, target: Dims, section: Section) -> str:
    match expr:
        case Number():
            return str(expr.value)
        case Ref():
            return _identifier(expr.name) + _index(expr, target, section)
        case Apply():
            left, right = (_expression(e, target, section) for e in (expr.left, expr.right))
            if expr.operator == "mul" and _is_sum(expr.left):
                left = f"({left})"
            if (expr.operator != "add" and _is_sum(expr.right)) or (expr.operator == "mul" and _is_product(expr.right)):
                right = f"({right})"
            return f"{left} {_SIGNS[expr.operator]} {right}"


def _index(ref: Ref, target: Dims, section: Section) -> str:
    """New axes that broadcast a tensor [slots, heads, ...]; a scalar argument needs none."""
    if ref.along == "all":
        return "" if ref.name in section.program.scalars else f"[{', '.join(['...', *['None'] * len(target)])}]"
    return {"rows": "[..., :, None]", "columns": "[..., None, :]", None: ""}[ref.along]


def _is_sum(expr: ElementExpr) -> bool:
    return isinstance(expr, Apply) and expr.operator != "mul"


def _is_product(expr: ElementExpr) -> bool:
    return isinstance(expr, Apply) and expr.operator == "mul"


# The module


def _view(spec: OpSpec, chunk: int, sections: Sequence[Section]) -> PortableView:
    value = [item for item in spec.inputs if item.heads == "value"]
    data = [item for item in spec.inputs if item.dtype == "data"]
    leading = next((item for item in data if item.heads == "value"), data[0])
    heads = next(iter(value), leading)
    parameters = [f"{_identifier(i.name)}: {'float' if i.heads == 'none' else 'Tensor'}" for i in spec.inputs]
    parameters += ["initial_state: Tensor | None = None", "cu_seqlens: Tensor | None = None"]
    step = sections[-1]
    return PortableView(
        banner=_banner(spec),
        summary=spec.summary or f"The operator {spec.name}.",
        chunk=chunk,
        functions=tuple(map(_function, sections)),
        uses_torch=any(section.needs_dtype for section in sections),
        uses_partial=bool(step.scalars) or step.needs_dtype or step.needs_steps,
        signature=_bracketed("def forward(", parameters, ") -> tuple[Tensor, Tensor]:"),
        argument_lines=tuple(_argument(spec, item) for item in spec.inputs),
        data_arguments=", ".join(_identifier(item.name) for item in data),
        leading=_identifier(leading.name),
        heads_from=_identifier(heads.name),
        body=tuple(_body(spec, sections)),
        output_width=_size(spec, "V"),
        state=_identifier(spec.state),
    )


def _banner(spec: OpSpec) -> str:
    text = (template_root() / TEMPLATE).read_bytes()
    return "\n".join(
        [
            f"# Generated by qlagen {qlagen.__version__} from {Path(spec.file).name}. Do not edit.",
            f"# Spec sha256 {spec.digest}",
            f"# Template sha256 {hashlib.sha256(text).hexdigest()}",
        ]
    )


def _argument(spec: OpSpec, item: Input) -> str:
    if item.heads == "none":
        return f"{item.name}: a number."
    heads = spec.head_names[0 if item.heads == "key" else 1]
    shape = ", ".join(["B", "T", heads, *item.dims])
    kind = "the natural logarithm of a decay" if item.role == "log_gate" else item.dtype
    return f"{item.name} [{shape}]: {kind}."


def _body(spec: OpSpec, sections: Sequence[Section]) -> list[str]:
    lines: list[str] = []
    if any(section.needs_steps for section in sections):
        lines.append(f"steps = {_size(spec, spec.steps)}")
    for item in (item for item in spec.inputs if item.heads != "none"):
        name = _identifier(item.name)
        method = "gather_log_gate" if item.role == "log_gate" else "gather"
        per_step = ", per_step=True" if item.per_step else ""
        lines.append(f"{name} = chunks.{method}({name}{per_step})")
    *ahead, step = sections
    for section in ahead:
        results = ", ".join(_names(section.stores))
        arguments = [*_names(section.inputs), *_keywords(section)]
        lines.append(_indented(f"{results} = {section.name}(", arguments, ")"))
    assert step.carry is not None
    state = _identifier(step.carry.name)
    sizes = ", ".join(_size(spec, dim) for dim in step.carry.dims)
    keywords = _keywords(step)
    function = f"partial({step.name}, {', '.join(keywords)})" if keywords else step.name
    lines.append(f"{state} = chunks.start(initial_state, ({sizes}))")
    lines.append(_indented("values = (", _names(step.inputs), ",)" if len(step.inputs) == 1 else ")"))
    return [*lines, f"outputs, {state} = chunks.walk({function}, {state}, values)"]


def _keywords(section: Section) -> list[str]:
    keywords = [f"{name}={name}" for name in _names(section.scalars)]
    keywords += ["dtype=dtype"] if section.needs_dtype else []
    return keywords + (["steps=steps"] if section.needs_steps else [])


def _indented(before: str, items: Sequence[str], after: str) -> str:
    return _bracketed(before, items, after).replace("\n", "\n    ")


def _size(spec: OpSpec, dim: str) -> str:
    """The size of a dimension: an input's, else the spec's."""
    for item in spec.inputs:
        if dim in item.dims:
            return f"{_identifier(item.name)}.shape[{item.dims.index(dim) - len(item.dims)}]"
    return str(dict(spec.dims)[dim])
