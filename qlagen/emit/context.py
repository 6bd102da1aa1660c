"""A schedule with look-ups by name, and how its things are called in a kernel file."""

from __future__ import annotations

from dataclasses import dataclass, field

from qlagen.errors import QlagenError
from qlagen.program.dims import infer_dims
from qlagen.program.ir import Dims, Segment, Tensor
from qlagen.schedule.model import Barrier, Fragment, Ring, Role, Schedule, Value

FULL = {"C": "CHUNK", "K": "KEY_DIM", "V": "VALUE_DIM"}
"""Constants of the sizes of whole tensors."""
TILE = {**FULL, "V": "VALUE_TILE"}
"""Constants of the sizes that one CTA works on."""
HEADS = {"key": "key_heads", "value": "value_heads"}
HEAD = {"key": "key_head", "value": "value_head"}
STAGES = {"load": "LOAD_STAGES", "handover": "HANDOVER_STAGES", "output": "OUTPUT_STAGES", "inner": "INNER_STAGES"}
WARP = 32
PACKED = "PACKED_ENTRIES"
"""Entries of a lower triangular tile in global memory."""
DONE = "T.max(done, 0)"
"""Iterations of a CTA's items before the one at hand, on a persistent grid: the rings run on from there. The maximum
says that it is not negative, so that remainders are cheap."""
SWIZZLE_COLUMNS = 64
"""Columns of 16-bit values in one 128-byte swizzled row: a wider tile is several parts of that width."""


@dataclass(frozen=True)
class Context:
    schedule: Schedule
    rings: dict[str, Ring] = field(init=False)
    values: dict[str, Value] = field(init=False)
    fragments: dict[str, Fragment] = field(init=False)
    barriers: dict[str, Barrier] = field(init=False)
    _dims: dict[str, Dims] = field(init=False)

    def __post_init__(self) -> None:
        schedule = self.schedule
        of = dict(schedule.fragment_of)
        by_name = {fragment.name: fragment for fragment in schedule.fragments}
        object.__setattr__(self, "rings", {ring.name: ring for ring in schedule.rings})
        object.__setattr__(self, "values", {value.name: value for value in schedule.values})
        object.__setattr__(self, "fragments", {value: by_name[name] for value, name in of.items()})
        object.__setattr__(self, "barriers", {barrier.name: barrier for barrier in schedule.barriers})
        object.__setattr__(self, "_dims", infer_dims(schedule.program))

    @property
    def carried(self) -> bool:
        return self.schedule.program.carry is not None

    @property
    def segment(self) -> Segment | None:
        """Set in a kernel that makes the maps of segments: it walks whole chunks only."""
        return self.schedule.program.segment

    @property
    def persistent(self) -> bool:
        """Whether a CTA of a carried kernel walks several items; those of chunk-parallel kernels always do."""
        return self.carried and self.schedule.options.persistent

    @property
    def in_turns(self) -> bool:
        """Whether a launch may have two CTAs for a segment's state, in `turns`: those of the first turn take what is
        walked as a whole, the others what is forgotten within few chunks, without maps. So the longest start first."""
        return self.segment is not None and self.segment.bound is not None and not self.persistent

    @property
    def heads(self) -> int:
        """Value heads of an iteration."""
        return self.schedule.options.heads

    @property
    def keys(self) -> int:
        """Key heads of an iteration."""
        return self.schedule.options.keys

    def size(self, symbol: str) -> int:
        return dict(self.schedule.dims)[symbol]

    def fragment(self, value: str) -> str:
        return self.fragments[value].name

    def is_flipped(self, role: Role) -> bool:
        """Whether the role's register tiles are transposes of the program's matrices."""
        holds_state = any(f.carried and f.role == role.name for f in self.schedule.fragments)
        return self.schedule.transposed and holds_state

    def role(self, name: str) -> Role:
        return next(role for role in self.schedule.roles if role.name == name)

    def extents(self, value: str) -> tuple[str, str]:
        """The sizes of a register value, as constants of the file where its dimensions are known."""
        tile = self.values[value]
        dims = next((self._dims[name] for name in _program_names(value) if name in self._dims), ())
        texts, sizes = tuple(TILE[dim] for dim in dims), tuple(self._tile_size(dim) for dim in dims)
        if sizes == tile.shape and not self._reversed(value):
            return texts[0], texts[1]
        if sizes[::-1] == tile.shape and self._reversed(value):
            return texts[1], texts[0]
        return str(tile.shape[0]), str(tile.shape[1])

    def _reversed(self, value: str) -> bool:
        """Whether a register value's first index is the program's second."""
        flipped = self.is_flipped(self.role(self.fragments[value].role))
        return flipped != self.values[value].transposed_view

    def _tile_size(self, dim: str) -> int:
        return self.schedule.options.value_tile if dim == "V" and self.carried else self.size(dim)

    def ready_barrier(self, ring: str) -> str:
        """The barrier that announces the ring's slots as filled."""
        return next(b.name for b in self.schedule.barriers if not b.releases and ring in b.rings)

    def is_gemm_operand(self, ring: Ring) -> bool:
        """Whether wgmma reads the ring: its swizzle then follows from the product."""
        steps = (i.step for role in self.schedule.roles for i in role.body if i.step is not None)
        return any(s.kind == "gemm" and ring.name in (s.left, s.right) and ring.name in s.rings for s in steps)


def _program_names(value: str) -> tuple[str, ...]:
    """Program values that a register value may be a form of: ``_f`` fetched, ``_b`` 16-bit operand, ``_out`` stored."""
    return (value, *(value.removesuffix(form) for form in ("_f", "_b", "_out")))


def ring_name(ring: Ring) -> str:
    return f"{ring.name}_ring"


def stage(ring: Ring) -> str:
    """The slot of an iteration; a role's own ring has one."""
    return "0" if ring.stage_class == "inner" else f"step % {STAGES[ring.stage_class]}"


def slot(ring: Ring, head: str = "head") -> str:
    """The whole tile of an iteration, of one of its value heads where the ring has several."""
    return f"{ring_name(ring)}[{stage_head(ring, head)}, {', '.join(':' for _ in ring.dims)}]"


def stage_head(ring: Ring, head: str) -> str:
    """The first indices of a ring's tile."""
    return f"{stage(ring)}, {head}" if ring.heads > 1 else stage(ring)


def entry(ring: Ring, index: str) -> str:
    """One entry of a vector ring at an iteration."""
    return f"{ring_name(ring)}[{stage(ring)}, {index}]"


def first_thread(role: Role) -> str:
    """The role's first thread as text: the end of the role before it is a constant of the file."""
    return f"{role.name.upper()}_FIRST"


def end_thread(role: Role) -> str:
    return f"{role.name.upper()}_END"


def role_warp(role: Role) -> str:
    """A warp's number inside its role."""
    return f"(warp - {first_thread(role)} // WARP)" if role.first_thread else "warp"


def slot_extent(ring: Ring) -> str:
    """Elements of one slot."""
    return " * ".join(TILE[dim] for dim in ring.dims)


def is_static(ring: Ring) -> bool:
    """Only SIMT code touches it: static shared memory. What TMA or wgmma address lies in dynamic shared memory."""
    return len(ring.shape) == 1


def dtype_text(dtype: str) -> str:
    return "data_type" if dtype == "data" else '"float32"'


def tensor_shape(tensor: Tensor) -> tuple[str, ...]:
    """The tensor's shape in global memory: names of dynamic dimensions and constants."""
    if tensor.layout == "token":
        return ("tokens", HEADS[tensor.head], *(FULL[dim] for dim in tensor.dims[1:]))
    if tensor.layout == "chunk" and tensor.lower:
        return ("chunk_count", HEADS[tensor.head], PACKED)
    if tensor.layout == "chunk":
        return ("chunk_count", HEADS[tensor.head], *(FULL[dim] for dim in tensor.dims))
    message = f"tensor {tensor.name} has layout {tensor.layout!r}, which no kernel loads or stores tile by tile"
    raise QlagenError("E-EMIT", message, notes=("the carried value is the only per-sequence tensor",))


def columns_of(dims: Dims, carried: bool) -> str:
    """The slice of a tile's columns that a CTA works on."""
    tiled = carried and dims[1] == "V"
    return "value_column:value_column + VALUE_TILE" if tiled else ":"


def loaded_rings(context: Context, role: Role) -> list[Ring]:
    """What a mover loads."""
    return [context.rings[i.ring] for i in role.body if i.kind == "load" and i.ring]


def chunk_item(context: Context) -> tuple[str, str]:
    """The item of an iteration of a chunk-parallel kernel, the last one first: the next kernel starts with the first
    chunks, which the L2 cache still holds then."""
    return "item", f"{chunk_items(context)} - 1 - block - step * workers"


def chunk_items(context: Context) -> str:
    """How many items a chunk-parallel kernel has."""
    return f"used * {'value_heads' if context.heads == 1 else 'units'}"
