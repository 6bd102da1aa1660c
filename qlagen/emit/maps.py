"""Views of elementwise steps: maps over register tiles, vectors in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qlagen.emit.context import TILE, Context, entry, ring_name, role_warp, stage
from qlagen.emit.expressions import broken, factors, product, render, strictest
from qlagen.emit.matrices import is_accumulator
from qlagen.emit.views import Comment, Decay, GateVector, Map, MapLoop, Vector
from qlagen.errors import QlagenError
from qlagen.program.ir import ElementExpr, Gate, Number, Ref
from qlagen.schedule.model import Role, Step


def comment_of(step: Step) -> Comment:
    return Comment(step.origin, step.note or step.name)


def required_expr(step: Step) -> ElementExpr:
    if step.expr is None:
        raise QlagenError("E-EMIT", f"step {step.name} ({step.kind}) has no expression")
    return step.expr


DECAY_ROWS = 64
"""The device function of a decay is spelled for matrices of so many rows and columns, in one warpgroup."""
BLOCK_COLUMN = "part * BLOCK + column"
"""The column of a matrix that is made in blocks of as many columns as a warp has rows."""


@dataclass(frozen=True)
class MapText:
    """Names of a map's operands. `row` and `column` here index the program's matrix, in the text the register
    tile."""

    context: Context
    step: Step
    flipped: bool
    column_text: str = "column"

    @property
    def row(self) -> str:
        return "column" if self.flipped else "row"

    @property
    def column(self) -> str:
        return "row" if self.flipped else self.column_text

    @property
    def gates(self) -> dict[str, Gate]:
        return {gate.name: gate for gate in self.step.gates}

    def leaf(self, ref: Ref) -> str:
        gate = self.gates.get(ref.name)
        if gate is not None:
            return self._gate(gate, None)
        if ref.along == "all":
            return ref.name
        if ref.along is not None:
            index = self.row if ref.along == "rows" else self.column
            return entry(self.context.rings[ref.name], index)
        value = self.context.values[ref.name]
        index = "column, row" if value.transposed_view else f"row, {self.column_text}"
        return f"{self.context.fragment(ref.name)}[{index}]"

    def _gate(self, gate: Gate, keeps: str | None) -> str:
        """A gate's entry; `keeps` overrides which entries a decay keeps."""
        if gate.kind == "total":
            return f"{gate.name}_last[0]"
        keep = f"{self.row} {keeps or strictest((gate,))} {self.column}"
        if gate.kind != "decay":
            return f"T.if_then_else({keep}, 1.0, 0.0)"
        exponent = f"{gate.name}_rows[{self.row}] - {gate.name}_columns[{self.column}]"
        if self.step.below:
            return f"T.exp2({exponent})"
        return f"T.exp2(T.if_then_else({keep}, {exponent}, MINUS_INFINITY))"

    def is_uniform(self, part: ElementExpr) -> bool:
        """Whether a factor is the same for all entries: a scalar argument, a total decay or a number."""
        return isinstance(part, Number) or (isinstance(part, Ref) and part.along == "all")

    def masked_product(self, parts: Sequence[ElementExpr]) -> str:
        """A product whose mask factors select entries: inside a decay's exponent, else around the product."""
        matrices = [self.gates[p.name] for p in parts if isinstance(p, Ref) and p.name in self.gates]
        matrices = [gate for gate in matrices if gate.kind != "total"]
        keeps = strictest(matrices)
        decays = any(gate.kind == "decay" for gate in matrices)
        masks = {gate.name for gate in matrices if gate.kind != "decay"}
        kept = [part for part in parts if not (isinstance(part, Ref) and part.name in masks)]

        def leaf(ref: Ref) -> str:
            gate = self.gates.get(ref.name)
            return self._gate(gate, keeps) if gate is not None and gate.kind == "decay" else self.leaf(ref)

        text = product(kept, leaf)
        if keeps is None or decays or self.step.below:
            return text
        return f"T.if_then_else({self.row} {keeps} {self.column}, {text}, 0.0)"


def map_view(context: Context, role: Role, step: Step) -> Map:
    """Spells a map. Exponentials are made in place in fp32 and converted in a second loop: pairs convert together."""
    text = MapText(context, step, context.is_flipped(role), BLOCK_COLUMN if step.below else "column")
    assert step.writes is not None
    out = context.values[step.writes]
    index = "column, row" if out.transposed_view else f"row, {text.column_text}"
    target = f"{context.fragment(step.writes)}[{index}]"
    parts = factors(required_expr(step))
    loops: tuple[MapLoop, ...]
    host = _fp32_host(context, step, parts) if out.dtype == "data" and _has_decay(text, parts) else None
    decay = None if host is None else _decay(text, role, host, parts)
    if host is not None and decay is not None:
        kept = [p for p in parts if not text.is_uniform(p) and not (isinstance(p, Ref) and p.name in text.gates)]
        loops = (MapLoop(target, broken(product(kept, text.leaf))),)
    elif host is None:
        loops = (MapLoop(target, broken(text.masked_product(parts))),)
    else:
        inside = [p for p in parts if isinstance(p, Ref) and (p.name in text.gates or p.name == host.name)]
        rest = [p for p in parts if not any(p is q for q in inside)]
        place = text.leaf(host)
        converted = product((host, *rest), text.leaf)
        loops = (MapLoop(place, broken(text.masked_product(inside))), MapLoop(target, broken(converted)))
    rows, columns = context.extents(step.writes)
    if out.transposed_view:
        rows, columns = columns, rows
    axes = ("column", "row") if text.flipped else ("row", "column")
    return Map(
        rows=rows,
        columns=columns,
        gates=gate_vectors(context, step, axes, (rows, columns)) if decay is None else (),
        last=_last_entries(context, step),
        loops=loops,
        below=role_warp(role) if step.below else None,
        decay=decay,
        comment=comment_of(step),
    )


def _decay(text: MapText, role: Role, host: Ref, parts: Sequence[ElementExpr]) -> Decay | None:
    """The device function for the decay and the numbers among a map's factors, where it can do them."""
    context, step = text.context, text.step
    matrices = [gate for gate in step.gates if gate.kind != "total"]
    decays = [gate for gate in matrices if gate.kind == "decay"]
    square = context.values[host.name].shape == (DECAY_ROWS, DECAY_ROWS) and role.warps * 16 == DECAY_ROWS
    known = square and len(decays) == 1 and not decays[0].exclusive and strictest(matrices) == ">="
    if not known or step.below or text.flipped or not is_accumulator(role, host.name):
        return None
    ring = context.rings[dict(step.lookups)[decays[0].name]]
    numbers = [part for part in parts if text.is_uniform(part)]
    number = product(numbers, text.leaf) if numbers else "T.float32(1)"
    return Decay(context.fragment(host.name), entry(ring, "0"), number, role_warp(role))


def _has_decay(text: MapText, parts: Sequence[ElementExpr]) -> bool:
    named = (text.gates.get(p.name) for p in parts if isinstance(p, Ref))
    return any(gate is not None and gate.kind == "decay" for gate in named)


def _fp32_host(context: Context, step: Step, parts: Sequence[ElementExpr]) -> Ref | None:
    """A factor in fp32 registers that only this step reads: the place for the exponentials."""
    readers: dict[str, int] = {}
    for role in context.schedule.roles:
        for instruction in role.body:
            for name in instruction.step.reads if instruction.step else ():
                readers[name] = readers.get(name, 0) + 1
    for part in parts:
        if isinstance(part, Ref) and part.along is None and part.name in step.reads:
            value = context.values[part.name]
            if value.dtype == "float32" and not value.carried and readers[part.name] == 1:
                return part
    return None


def gate_vectors(
    context: Context, step: Step, index: tuple[str, str], extents: tuple[str, str]
) -> tuple[GateVector, ...]:
    """The log gates that a map's decays need along both of its axes; `index` names the program's rows and columns."""
    lookups = dict(step.lookups)
    found = []
    for gate in step.gates:
        if gate.kind == "decay":
            ring = context.rings[lookups[gate.name]]
            for axis, name in zip(("rows", "columns"), index, strict=True):
                extent = extents[0] if name == "row" else extents[1]
                found.append(GateVector(f"{gate.name}_{axis}", name, extent, entry(ring, name)))
    return tuple(found)


def _last_entries(context: Context, step: Step) -> tuple[tuple[str, str], ...]:
    """Total decays: the last entry of a decay from the chunk's start."""
    lookups = dict(step.lookups)
    totals = [gate.name for gate in step.gates if gate.kind == "total"]
    return tuple((f"{name}_last[0]", entry(context.rings[lookups[name]], "CHUNK - 1")) for name in totals)


def vector_view(context: Context, step: Step) -> Vector:
    """Spells a [C] vector: decays of the cumulative gate, scalars and other vectors, entry by entry."""
    lookups = dict(step.lookups)
    gates = {gate.name: gate for gate in step.gates}
    assert step.ring_out is not None

    def leaf(ref: Ref) -> str:
        gate = gates.get(ref.name)
        if gate is None:
            return ref.name if ref.along == "all" else entry(context.rings[ref.name], "row")
        if gate.kind == "total":
            return f"{gate.name}_last[0]"
        ring = context.rings[lookups[gate.name]]
        if gate.kind == "from_start":
            return f"T.exp2({entry(ring, 'row')} * LOG2_E)"
        if gate.kind == "to_end":
            return f"T.exp2(({entry(ring, 'CHUNK - 1')} - {entry(ring, 'row')}) * LOG2_E)"
        raise QlagenError("E-EMIT", f"step {step.name}: a vector cannot hold the {gate.kind} gate {gate.name}")

    out = context.rings[step.ring_out]
    value = render(required_expr(step), leaf)
    return Vector(
        out=ring_name(out),
        stage=stage(out),
        length=TILE[out.dims[0]],
        last=_last_entries(context, step),
        value=broken(value),
        comment=comment_of(step),
    )
