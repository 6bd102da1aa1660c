"""The named constants of a kernel file, and the names that it exports."""

from __future__ import annotations

import re
from collections.abc import Iterable

from qlagen.emit.context import PACKED, SWIZZLE_COLUMNS, WARP, Context, end_thread, first_thread
from qlagen.emit.lines import role_barrier
from qlagen.emit.parameters import dynamic_dimensions, parameters, scalars, state_columns
from qlagen.program.triangle import packed_entries
from qlagen.schedule.model import Schedule

Entries = tuple[tuple[str, str], ...]

DATA_TYPES = ("bfloat16", "float16")
PASS_CONFIGS = {
    "tl.enable_fast_math": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_buffer_init_check": True,
}
"""TileLang passes: approximate exp2, no synchronisation but the schedule's, no bounds guards on masked accesses, and no
warning of what it takes for reads (see `move_matrices` in operations.jinja)."""
_ALWAYS = ("VALUE_TILE", "THREADS")
"""Constants that are exports too."""


def kernel_name(schedule: Schedule) -> str:
    """``<operator>_<program>_<variant>``: the kernel's name, and the base of its symbol."""
    return f"{schedule.program.operator}_{schedule.program.name}_{schedule.options.name}"


def candidate_constants(context: Context) -> Entries:
    """Candidates: those that the text uses are kept."""
    schedule, options = context.schedule, context.schedule.options
    entries: list[tuple[str, str]] = [
        *((name, str(context.size(dim))) for dim, name in (("C", "CHUNK"), ("K", "KEY_DIM"), ("V", "VALUE_DIM"))),
        ("VALUE_TILE", str(options.value_tile)),
        ("TILES", f"{state_columns(context)} // VALUE_TILE"),
        ("STATE_TILES", "VALUE_DIM // VALUE_TILE"),
        ("WARP", str(WARP)),
        (PACKED, str(packed_entries(context.size("C")))),
        *_thread_constants(schedule),
        ("THREADS", str(schedule.threads)),
        *_stage_constants(schedule),
        *((f"{role.name.upper()}_REGISTERS", str(role.registers)) for role in schedule.roles if role.kind == "compute"),
        *(("MOVER_REGISTERS", str(role.registers)) for role in schedule.roles if role.kind == "mover"),
    ]
    compute = [role for role in schedule.roles if role.kind == "compute"]
    entries += [(role_barrier(role), str(number)) for number, role in enumerate(compute, 1)]
    entries += [
        ("SWIZZLE_COLUMNS", str(SWIZZLE_COLUMNS)),
        ("BLOCK", "16"),
        ("LANE_ENTRIES", "CHUNK // WARP"),
        ("HEADS", str(options.heads)),
        ("KEYS", str(options.keys)),
        ("HEADS_PER_KEY", "HEADS // KEYS"),
        ("QUAD", "4"),
        ("LANE_STEPS", str(WARP.bit_length() - 1)),
        ("SCAN_FLOOR", "-128.0"),
        ("MINUS_INFINITY", 'float("-inf")'),
        ("LOG2_E", "1.4426950408889634"),
        ("FULL_ROW", "T.GemmWarpPolicy.FullRow"),
    ]
    return tuple(dict(entries).items())


def _thread_constants(schedule: Schedule) -> Entries:
    entries: list[tuple[str, str]] = []
    before = "0"
    for role in schedule.roles:
        if role.kind == "compute":
            entries.append((first_thread(role), before))
            entries.append((end_thread(role), f"{first_thread(role)} + {role.warps} * WARP"))
        else:
            entries.append((end_thread(role), f"{before} + WARP" if before != "0" else "WARP"))
        before = end_thread(role)
    return tuple(entries)


def _stage_constants(schedule: Schedule) -> Entries:
    names = {"load": "LOAD_STAGES", "handover": "HANDOVER_STAGES", "output": "OUTPUT_STAGES", "inner": "INNER_STAGES"}
    stages = {ring.stage_class: ring.stages for ring in schedule.rings}
    return tuple((name, str(stages[stage_class])) for stage_class, name in names.items() if stage_class in stages)


def exports(context: Context) -> Entries:
    """What the library and the emulator read, see `qla_ops`."""
    schedule = context.schedule
    return (
        ("NAME", f'"{kernel_name(schedule)}"'),
        ("KIND", f'"{_kind(context)}"'),
        ("TENSORS", _strings(tensor.name for tensor in parameters(context))),
        ("SCALARS", _tuple(f'("{name}", "{kind}")' for name, kind in scalars(context))),
        ("DYNAMIC", _strings(dynamic_dimensions(context))),
        ("DATA_TYPES", _strings(DATA_TYPES)),
        ("CTAS_PER_SM", str(schedule.options.ctas_per_sm)),
        *([] if context.carried else [("ITEM_HEADS", f"({context.keys}, {context.heads // context.keys})")]),
        ("SHARED_BYTES", str(schedule.shared_bytes)),
        ("PASS_CONFIGS", _listed("{", (f'"{key}": {value}' for key, value in PASS_CONFIGS.items()), "}")),
    )


def _kind(context: Context) -> str:
    if context.segment is not None:
        return "segment"
    return "carried" if context.carried else "chunk_parallel"


def _strings(names: Iterable[str]) -> str:
    return _tuple(f'"{name}"' for name in names)


def _tuple(entries: Iterable[str]) -> str:
    return _listed("(", entries, ")")


def _listed(opening: str, entries: Iterable[str], closing: str) -> str:
    """One entry a line, each with a comma."""
    return "\n".join((opening, *(f"    {entry}," for entry in entries), closing))


def used_constants(candidates: Entries, text: str) -> Entries:
    """The constants that the text after them mentions, directly or through another constant."""
    words = set(re.findall(r"\w+", text[text.index("def build(") :]))
    kept: list[tuple[str, str]] = []
    for name, value in reversed(candidates):
        if name in words or name in _ALWAYS:
            words |= set(re.findall(r"\w+", value))
            kept.insert(0, (name, value))
    return tuple(kept)
