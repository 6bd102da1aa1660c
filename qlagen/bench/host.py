"""What the GPU's time does not show: the host's time for a call, the first call of a process, and sizes."""

from __future__ import annotations

import importlib
import io
import time
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from qlagen.bench.cases import Case, make_case
from qlagen.bench.inputs import make_inputs
from qlagen.bench.measure import Bench, Event
from qlagen.bench.peers.base import Implementation
from qlagen.bench.timing import host_seconds

CACHE_VARIABLES = (
    "TILELANG_CACHE_DIR",
    "TILELANG_TMP_DIR",
    "TRITON_CACHE_DIR",
    "FLASHINFER_WORKSPACE_BASE",
    "CUTE_DSL_CACHE_DIR",
    "TVM_FFI_CACHE_DIR",
    "QLA_OPS_CACHE",
    "XDG_CACHE_HOME",
    "HOME",
)
"""Where the libraries keep what they compile; a cold start points all of them at an empty folder."""


def host_cases() -> list[Case]:
    """Small rows, in which a call's cost is the host's."""
    return [make_case("forward", heads, "1x1024", "quarter ungated") for heads in ("2:8", "16:64")]


def first_call_case() -> Case:
    return make_case("forward", "16:64", "1x8192", "quarter ungated")


def host_rows(bench: Bench, names: Sequence[str], cases: Sequence[Case]) -> Iterator[Event]:
    """A record per implementation and case with the host's time for a call, and one with its sizes."""
    for name in names:
        implementation = bench.implementation(name)
        version = {"implementation": name, "version": implementation.version()}
        for case in cases:
            if implementation.unsupported(case):
                continue
            yield {"event": "begin", "implementation": name}
            try:
                seconds = _enqueue_seconds(bench, implementation, case)
            except Exception as fault:  # whatever a library raises, the others go on
                yield {"event": "failed", "implementation": name, "reason": f"{type(fault).__name__}: {fault}"[:200]}
                continue
            record = {"kind": "host", **case.as_json(), **version, "enqueue_us": round(seconds * 1e6, 1)}
            yield {"event": "record", "record": record}
        yield {"event": "record", "record": {"kind": "size", **version, **sizes(implementation)}}


def _enqueue_seconds(bench: Bench, implementation: Implementation, case: Case) -> float:
    import torch

    def wait() -> None:
        if bench.device != "cpu":
            torch.cuda.synchronize()

    with torch.no_grad():
        call = implementation.public(make_inputs(case, bench.device))
        call()
        return host_seconds(call, wait)


def first_call(bench: Bench, name: str, case: Case) -> Event:
    """Seconds to import a library and to have the results of its first call, in a process that did neither before."""
    inputs = make_inputs(case, bench.device)
    begun = time.perf_counter()
    implementation = bench.implementation(name)
    imported = time.perf_counter()
    implementation.forward(inputs)()
    if bench.device != "cpu":
        import torch

        torch.cuda.synchronize()
    done = time.perf_counter()
    seconds = {"import_s": round(imported - begun, 3), "call_s": round(done - imported, 3)}
    return {"event": "first call", "version": implementation.version(), **seconds}


def sizes(implementation: Implementation) -> dict[str, Any]:
    """MiB: of the package as installed, and of its files packed as a wheel packs them (only of a checkout of ours)."""
    try:
        files = metadata.files(implementation.distribution)
    except metadata.PackageNotFoundError:
        files = None
    if files:
        total = sum(file.size or 0 for file in files)
        return {"installed_mib": _mebibytes(total)}
    found = [file for module in implementation.modules for file in _module_files(module)]
    return {
        "installed_mib": _mebibytes(sum(file.stat().st_size for file in found)),
        "wheel_mib": _mebibytes(_packed_bytes(found)),
    }


def _module_files(module: str) -> list[Path]:
    origin = importlib.import_module(module).__file__
    folder = Path(origin).parent if origin else Path()
    return sorted(file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def _packed_bytes(files: Sequence[Path]) -> int:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, file in enumerate(files):
            archive.writestr(f"{number}/{file.name}", file.read_bytes())
    return packed.tell()


def _mebibytes(count: int) -> float:
    return round(count / 2**20, 2)
