"""Frozen views that the library's templates read."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import PurePath

from qlagen import __version__
from qlagen.package.arguments import ArgumentView, is_normalised, view_arguments
from qlagen.package.compile import DIGEST_LENGTH, CompiledOperator
from qlagen.package.kernel_files import KernelFile
from qlagen.package.render import library_digest
from qlagen.program.ir import Plan, Tensor
from qlagen.program.triangle import packed_entries, strips
from qlagen.schedule.model import Schedule
from qlagen.schedule.target import PlanCosts, Target, load_target
from qlagen.spec.model import OpSpec

TILELANG_VERSION = "0.1.15"
"""The version that kernels are written for."""

_RECORDS = ("Kernel", "Operator", "Program", "ScalarArgument", "Segments", "TensorArgument", "Workspace")
_PORTABLE_RECORDS = ("Operator", "ScalarArgument", "TensorArgument")
_DOC_WIDTH = 108
_RECORD_INDENT = 20
_RECORD_WIDTH = 90


@dataclass(frozen=True)
class KernelView:
    """One kernel's record; tuples as Python text."""

    name: str
    module: str
    tensors: str
    scalars: str
    dynamic: str
    kind: str
    value_tile: int
    ctas_per_sm: int
    item_heads: str
    data_types: str
    chunk_nanoseconds: str


@dataclass(frozen=True)
class ProgramView:
    name: str
    kernels: tuple[KernelView, ...]


@dataclass(frozen=True)
class OperatorView:
    banner: str
    name: str
    function: str
    summary: str
    references: tuple[str, ...]
    recurrence: tuple[str, ...]
    arguments: tuple[ArgumentView, ...]
    inputs: str
    """All inputs, as they stand between the parentheses of a tuple."""
    required: str
    """The inputs without a default."""
    head_names: tuple[str, str]
    head_names_text: str
    dims: str
    sizes: str
    normalised: str
    programs: tuple[ProgramView, ...]
    segments: str
    """The record of how sequences are cut; empty when they cannot be."""
    workspaces: tuple[str, ...]
    intermediates: tuple[str, ...]
    sources: tuple[str, ...]
    """Lines that cite the references; none without references."""
    records: str
    """The record classes that the module uses."""
    obstacle: str
    """Why there are no kernels; empty when there are."""


@dataclass(frozen=True)
class LibraryView:
    banner: str
    version: str
    tilelang_version: str
    operators: tuple[OperatorView, ...]
    example: OperatorView
    """The operator that the documentation shows: the first one with kernels, if there is any."""
    exports: tuple[str, ...]
    gpu: str
    costs: PlanCosts


def view_operator(compiled: CompiledOperator) -> OperatorView:
    """The view of one operator's module."""
    spec, plan, costs = compiled.spec, compiled.plan, load_target(compiled.target).plan
    arguments = view_arguments(spec)
    workspaces = () if compiled.obstacle else chunk_tensors(plan)
    chunk = dict(plan.dims)["C"]
    normalised = [entry.name for entry in spec.inputs if is_normalised(entry)]
    return OperatorView(
        banner=banner(f"{PurePath(spec.file).name} (sha256 {spec.digest[:DIGEST_LENGTH]})"),
        name=spec.name,
        function=f"chunk_{spec.name}",
        summary=spec.summary or f"The operator {spec.name}.",
        references=spec.references,
        recurrence=_recurrence(spec),
        arguments=arguments,
        inputs=", ".join(item.name for item in arguments) + ("," if len(arguments) == 1 else ""),
        required=", ".join(item.name for item in arguments if item.required),
        head_names=spec.head_names,
        head_names_text=_python(spec.head_names),
        dims=_python(plan.dims),
        sizes=", ".join(f"{symbol} = {size}" for symbol, size in spec.dims),
        normalised=" and ".join(normalised) or "nothing (no input is a query or key)",
        programs=tuple(
            ProgramView(variants[0].program.name, tuple(_view_kernel(spec, kernel, costs) for kernel in kernels))
            for variants, kernels in zip(compiled.schedules, compiled.kernels, strict=True)
        ),
        segments=_view_segments(compiled.schedules),
        workspaces=tuple(_workspace(tensor, chunk) for tensor in workspaces),
        intermediates=tuple(line for tensor in workspaces for line in _intermediate(tensor, spec, chunk)),
        sources=_sources(spec),
        records=_records(compiled),
        obstacle=compiled.obstacle,
    )


def view_library(operators: tuple[OperatorView, ...], target: Target) -> LibraryView:
    """The view of the files that all operators share."""
    fixed = ["BadValueError", "BuildError", "Explanation", "ImplementationUnavailableError", "LoadError"]
    functions = [item.function for item in operators]
    functions += [f"{item.function}_fwd" for item in operators if not item.obstacle]
    exports = sorted([*fixed, *functions, "can_use", "explain", "warmup"])
    example = next((item for item in operators if not item.obstacle), operators[0])
    return LibraryView(
        banner=banner("operator specs"),
        version=__version__,
        tilelang_version=TILELANG_VERSION,
        operators=operators,
        example=example,
        exports=tuple(exports),
        gpu=target.gpu,
        costs=target.plan,
    )


def banner(source: str) -> str:
    """The first lines of a generated Python file."""
    first = f"# Generated by qlagen {__version__} from {source}."
    return f"{first}\n# Templates {library_digest()[:DIGEST_LENGTH]}. Do not edit."


def chunk_tensors(plan: Plan) -> tuple[Tensor, ...]:
    """What one kernel stores for a later one, in launch order."""
    stores = (store.tensor for program in plan.programs for store in program.stores)
    return tuple(tensor for tensor in stores if tensor.layout == "chunk")


def _view_kernel(spec: OpSpec, kernel: KernelFile, costs: PlanCosts) -> KernelView:
    return KernelView(
        name=kernel.name,
        module=f"{spec.name}.{kernel.stem}",
        tensors=_wrapped(kernel.tensors),
        scalars=_wrapped(kernel.scalars),
        dynamic=_python(kernel.dynamic),
        kind=kernel.kind,
        value_tile=kernel.value_tile,
        ctas_per_sm=kernel.ctas_per_sm,
        item_heads=_python(kernel.item_heads),
        data_types=_python(kernel.data_types),
        chunk_nanoseconds=_python(costs.chunk_nanoseconds(kernel.kind, kernel.value_tile)),
    )


def _records(compiled: CompiledOperator) -> str:
    if compiled.obstacle:
        return ", ".join(_PORTABLE_RECORDS)
    return ", ".join(name for name in _RECORDS if name != "Segments" or _view_segments(compiled.schedules))


def _view_segments(schedules: tuple[tuple[Schedule, ...], ...]) -> str:
    """From the kernel that makes the maps of segments."""
    found = next((v[0].program.segment for v in schedules if v[0].program.segment is not None), None)
    if found is None:
        return ""
    return _python_text(f"Segments(skips={found.bound is not None!r}, condition={found.condition!r})")


def _recurrence(spec: OpSpec) -> tuple[str, ...]:
    gates = [f"{item.token_symbol} = exp({item.name})" for item in spec.inputs if item.token_symbol != item.name]
    lines = [f"{stage.name} = {stage.text}" for stage in spec.recurrence]
    if spec.step:
        first = 1 + [stage.name for stage in spec.recurrence].index(spec.first_state)
        steps = [f"    {stage.name} = {stage.text}" for stage in spec.step]
        again = f"{spec.steps} times, with {spec.state} = {spec.first_state} at first and {spec.next_state} after that:"
        lines[first:first] = [again, *steps]
    return (*gates, *lines)


def _sources(spec: OpSpec) -> tuple[str, ...]:
    lines = [line for text in spec.references for line in textwrap.wrap(text, _DOC_WIDTH, subsequent_indent="    ")]
    return ("Sources:", *(f"    {line}" for line in lines)) if lines else ()


def _workspace(tensor: Tensor, chunk: int) -> str:
    packed = f", entries={packed_entries(chunk)}" if tensor.lower else ""
    return _python_text(f"Workspace({tensor.name!r}, dims={tensor.dims!r}, data={tensor.dtype == 'data'}{packed})")


def _intermediate(tensor: Tensor, spec: OpSpec, chunk: int) -> tuple[str, ...]:
    dtype = "data type" if tensor.dtype == "data" else "fp32"
    if not tensor.lower:
        return (f"``{tensor.name}`` [{', '.join(('chunks', spec.head_names[1], *tensor.dims))}] ({dtype}),",)
    parts = [f"[{s.rows}, {s.columns}] from entry {s.line * s.columns}" for s in strips(chunk)]
    return (
        f"``{tensor.name}`` [chunks, {spec.head_names[1]}, {packed_entries(chunk)}] ({dtype}),",
        f"    the lower triangle of [{chunk}, {chunk}], from top to bottom {', '.join(parts)},",
    )


def _python(value: object) -> str:
    return _python_text(repr(value))


def _wrapped(values: tuple[object, ...]) -> str:
    """A tuple in a kernel's record: one entry a line when it is long."""
    text = _python(values)
    if len(text) <= _RECORD_WIDTH:
        return text
    lines = "\n".join(f"{' ' * (_RECORD_INDENT + 4)}{_python(value)}," for value in values)
    return f"(\n{lines}\n{' ' * _RECORD_INDENT})"


def _python_text(text: str) -> str:
    """Double quotes, as everywhere in the library. The names in it have no quotes of their own."""
    return text.replace("'", '"')
