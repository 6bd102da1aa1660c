"""Views of elementwise steps: maps over register tiles, vectors in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qlagen.emit.context import TILE, Context, entry, ring_name, role_warp, stage
from qlagen.emit.expressions import broken, factors, product, render, strictest
from qlagen.emit.views import Comment, GateVector, Map, MapLoop, Vector
from qlagen.errors import QlagenError
from qlagen.program.ir import ElementExpr, Gate, Ref
from qlagen.schedule.model import Role, Step


def comment_of(step: Step) -> Comment:
    return Comment(step.origin, step.note or step.name)


def required_expr(step: Step) -> ElementExpr:
    if step.expr is None:
        raise QlagenError("E-EMIT", f"step {step.name} ({step.kind}) has no expression")
    return step.expr


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
    host = _fp32_host(context, step, parts) if out.dtype == "data" and _has_decay(text, parts) else None
    if host is None:
        loops: tuple[MapLoop, ...] = (MapLoop(target, broken(text.masked_product(parts))),)
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
    gates = gate_vectors(context, step, axes, (rows, columns))
    warp = role_warp(role) if step.below else None
    return Map(rows, columns, gates, _last_entries(context, step), loops, warp, comment_of(step))


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
