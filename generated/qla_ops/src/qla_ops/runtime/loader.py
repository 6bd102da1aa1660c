"""Finds and loads built kernels: first the folder inside the package, then the cache, then a build.

Loading needs torch and apache-tvm-ffi, nothing else.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qla_ops.runtime.builder import build, build_all, is_library, library_stem
from qla_ops.runtime.environment import cache_folder
from qla_ops.runtime.errors import LoadError
from qla_ops.runtime.model import Weights
from qla_ops.runtime.plan import can_cut
from qla_ops.runtime.records import Kernel, Operator
from qla_ops.runtime.toolchain import find_toolchain, missing_loader, missing_tools

PREBUILT = Path(__file__).parent.parent / "prebuilt"
"""Libraries that came with the package."""

TABLES = Kernel(
    name="tables",
    module="tables",
    tensors=(
        *("given", "cu_seqlens", "chunk_offsets", "chunk_first", "chunk_rows"),
        *("sequence_segments", "segment_offsets", "segment_chunks", "segment_sequence", "chains"),
    ),
    scalars=tuple(
        (name, "int32")
        for name in (
            *("wide", "sequences", "tokens", "chunk", "chunk_count", "segments", "chain_count", "parts", "length"),
            *Weights._fields,
        )
    ),
    dynamic=(),
    kind="chunk_parallel",
    value_tile=0,
    ctas_per_sm=1,
    data_types=("int32",),
)
"""The kernel of `metadata.packed_tables`, which all operators share."""

UNIT_VECTORS = Kernel(
    name="unit_vectors",
    module="unit_vectors",
    tensors=("first", "second", "third", "fourth", "unit"),
    scalars=tuple(
        (name, "int32")
        for name in (
            *("type", "count", "rows", "heads", "width"),
            *("first_stride", "second_stride", "third_stride", "fourth_stride"),
        )
    ),
    dynamic=(),
    kind="chunk_parallel",
    value_tile=0,
    ctas_per_sm=1,
    data_types=("float32",),
)
"""The kernel of `normalise.unit_vectors`; one library for all types of data."""

JOIN = Kernel(
    name="join",
    module="join",
    tensors=("chains", "segment_state", "segment_joined", "segment_products"),
    scalars=tuple(
        (name, "int32") for name in ("chain_count", "value_heads", "key_dim", "value_dim", "rooms", "workers")
    ),
    dynamic=(),
    kind="chunk_parallel",
    value_tile=0,
    ctas_per_sm=1,
    data_types=("float32",),
)
"""Carries states from segment to segment, for all operators."""

SHARED = (TABLES, UNIT_VECTORS, JOIN)
"""Kernels that belong to no operator, each built for its one data type."""

Function = Callable[..., Any]
NOT_EARLY, EARLY = 0, 1
"""What a launch takes last: whether the kernel may start while the one before it on the stream still runs. The first
one of a call does not, whatever ran before it."""
_LOCK = threading.Lock()
_LOADED: dict[tuple[str, str], Function] = {}


def function(kernel: Kernel, data_type: str) -> Function:
    """The launch function of a kernel; it takes the values of ``kernel.parameters``, in that order, and `EARLY` or not.

    Raises BuildError or LoadError.
    """
    found = _LOADED.get((kernel.name, data_type))
    if found is not None:
        return found
    with _LOCK:
        if (kernel.name, data_type) not in _LOADED:
            _LOADED[kernel.name, data_type] = _load(kernel, data_type)
        return _LOADED[kernel.name, data_type]


def needed(operator: Operator, data_type: str) -> tuple[tuple[Kernel, str], ...]:
    """Every kernel that calls of an operator may need, with the data type it is built for."""
    if not operator.kernels:
        return ()
    shared = tuple(kernel for kernel in SHARED if kernel is not JOIN or can_cut(operator))
    return tuple(
        [(kernel, data_type) for kernel in operator.kernels] + [(kernel, kernel.data_types[0]) for kernel in shared]
    )


def build_missing(kernels: Sequence[tuple[Kernel, str]]) -> None:
    """Builds at the same time what would otherwise be built one after another when it is first used.

    Raises BuildError.
    """
    unknown = [pair for pair in kernels if (pair[0].name, pair[1]) not in _LOADED]
    missing = [pair for pair in unknown if find_library(*pair) is None]
    if len(missing) > 1:
        build_all(missing, cache_folder())


def obstacle(kernels: tuple[tuple[Kernel, str], ...]) -> str | None:
    """Why these kernels can be neither loaded nor built here, or None. Builds nothing."""
    if all((kernel.name, data_type) in _LOADED for kernel, data_type in kernels):
        return None
    missing = missing_loader()
    if missing is None and any(find_library(kernel, data_type) is None for kernel, data_type in kernels):
        missing = missing_tools()
        if missing is not None:
            missing = f"the kernels are not built and {missing}"
    return missing


def find_library(kernel: Kernel, data_type: str) -> Path | None:
    """The built library of a kernel, or None. One that came with the package may be of any toolchain; in the cache it
    must be of the one that is installed, if one is."""
    stem = library_stem(kernel, data_type)
    tools = "*" if missing_tools() else find_toolchain().digest
    candidates = [*sorted(PREBUILT.glob(f"{stem}-*.so")), *sorted(cache_folder().glob(f"{stem}-{tools}.so"))]
    return next((path for path in candidates if is_library(path)), None)


def _load(kernel: Kernel, data_type: str) -> Function:
    path = find_library(kernel, data_type)
    if path is None:
        return _open(kernel, build(kernel, data_type, cache_folder()).path)
    try:
        return _open(kernel, path)
    except LoadError:
        if path.parent == PREBUILT or missing_tools():
            raise
        # A damaged file in the cache heals itself: build it again, once.
        path.unlink(missing_ok=True)
        return _open(kernel, build(kernel, data_type, cache_folder()).path)


def _open(kernel: Kernel, path: Path) -> Function:
    missing = missing_loader()
    if missing:
        raise LoadError(f"{kernel.name}: {missing}")
    try:
        module = importlib.import_module("tvm_ffi").load_module(str(path.absolute()))
        found: Function = module.get_function(kernel.name)
    except Exception as fault:
        # tvm_ffi raises whatever its loader meets; the file's name is what helps.
        raise LoadError(f"{kernel.name}: cannot load {path}: {fault}") from fault
    return found
