"""tables.cu and join.cu, run in the CPU emulator."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from qla_ops.runtime.builder import kernel_file
from qla_ops.runtime.loader import JOIN, TABLES
from qla_ops.runtime.metadata import Tables
from qla_ops.runtime.plan import CUT_NOTHING, Cutting
from qlagen.verify.emulator import EmulatedKernel, Launch, LoweredKernel, Mode, Parameter, build_emulated

EAGER = Mode()
MADE = tuple(name for name in TABLES.tensors if name not in ("given", "sequence_segments"))
"""Tables that `Tables` has too."""


@cache
def tables_kernel() -> EmulatedKernel:
    """The CUDA kernel, compiled for the CPU emulator."""
    text = kernel_file(TABLES).read_text()
    parameters = [
        *(Parameter(name, "int*", "int32", (f"{name}_size",)) for name in TABLES.tensors),
        *(Parameter(name, "int", "int32") for name, _ in TABLES.scalars),
    ]
    launch = Launch("tables_kernel", ("1", "1", "1"), 1024, 0)
    lowered = LoweredKernel(text, text, tuple(parameters), (launch,))
    return build_emulated(lowered, "tables")


@cache
def join_kernel(old: str = "", new: str = "") -> EmulatedKernel:
    """The CUDA kernel, compiled for the CPU emulator; `old`, which must be there once, is replaced by `new`."""
    text = kernel_file(JOIN).read_text()
    if old:
        assert text.count(old) == 1
        text = text.replace(old, new)
    parameters = [
        Parameter("chains", "int*", "int32", ("chains_size",)),
        Parameter("segment_state", "float*", "float32", ("joints", "value_heads", "numbers")),
        Parameter("segment_joined", "int*", "int32", ("joints", "value_heads")),
        Parameter("segment_products", "float*", "float32", ("joints", "rooms", "squares")),
        *(Parameter(name, "int", "int32") for name, _ in JOIN.scalars),
    ]
    launch = Launch("join_kernel", ("workers", "1", "1"), 256, 0)
    return build_emulated(LoweredKernel(text, text, tuple(parameters), (launch,)), "join")


def make_tables(
    offsets: Tensor, tokens: int, chunk: int, like: Tables, cutting: Cutting = CUT_NOTHING, mode: Mode = EAGER
) -> dict[str, Tensor]:
    """The tables that the kernel makes, in buffers of the sizes in `like`; entries that it leaves are -7."""
    sequences = len(offsets) - 1
    sizes = [sequences + 1 if name == "sequence_segments" else len(getattr(like, name)) for name in TABLES.tensors[1:]]
    buffers = [torch.full((size,), -7, dtype=torch.int32) for size in sizes]
    numbers = (int(offsets.dtype == torch.int64), sequences, tokens, chunk, like.chunk_count, like.segments)
    how = (cutting.parts, cutting.length, *cutting.weights)
    values = (offsets.view(torch.int32), *buffers, *numbers, like.chain_count, *how)
    tables_kernel()(mode=mode, **dict(zip(TABLES.parameters, values, strict=True)))
    return dict(zip(TABLES.tensors[1:], buffers, strict=True))


def check_tables(made: dict[str, Tensor], expected: Tables) -> None:
    """Every table of both; of the chains only those that are promised."""
    for name in MADE:
        wanted = getattr(expected, name)
        count = 2 * expected.chain_count if name == "chains" else len(wanted)
        assert torch.equal(made[name][:count], wanted[:count]), name
