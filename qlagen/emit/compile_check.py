"""Compiles kernel files with nvcc for sm_90a, without a GPU, and judges what ptxas says.

A kernel that spills registers, or whose wgmma ptxas serialises (messages C7510 to C7514), is right but slow: it fails.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from qlagen.emit.load import device_source, load_kernel
from qlagen.errors import QlagenError

FLAGS = ("-std=c++20", "-O3", "-w", "-cubin", "-arch=sm_90a", "--expt-relaxed-constexpr", "-Xptxas", "-v")
_RECIPE = 1
"""Raise it when what a report holds changes."""
_MESSAGE = re.compile(r"[^\n]*\bC75\d\d\b[^\n]*")
_SERIALISED = re.compile(r"\bC751[0-4]\b")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z0-9]+)")


@dataclass(frozen=True)
class CompileReport:
    """What ptxas made of one kernel. `registers` is per thread at launch; setmaxnreg changes it inside.

    `instructions`: SASS instructions by opcode, most frequent first; empty when nvdisasm is missing.
    """

    kernel: str
    data_type: str
    registers: int
    spill_bytes: int
    static_shared_bytes: int
    messages: tuple[str, ...]
    instructions: tuple[tuple[str, int], ...]

    @property
    def instruction_count(self) -> int:
        return sum(count for _, count in self.instructions)

    def faults(self) -> tuple[str, ...]:
        found = [f"{self.spill_bytes} bytes of registers are spilled"] if self.spill_bytes else []
        return (*found, *(message for message in self.messages if _SERIALISED.search(message)))


def check_compiled(
    files: Sequence[Path], data_types: Sequence[str] = (), cache: Path | None = None, processes: int = 2
) -> tuple[CompileReport, ...]:
    """Reports of every kernel file for every data type (all of a file's own when none is given), in order.

    Reports are kept in `cache` by a hash of the file, the data type and the tools. Raises E-COMPILE when nvcc fails or
    is missing, E-SLOW when a kernel spills or its wgmma are serialised, and what `device_source` raises.
    """
    jobs = [(file, kind, cache) for file in files for kind in data_types or _data_types(file)]
    if processes > 1 and len(jobs) > 1:
        # A fresh interpreter each: TileLang keeps state, and forking a process that has threads is unsafe.
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            reports = tuple(pool.map(_compile_or_message, jobs))
    else:
        reports = tuple(_compile_or_message(job) for job in jobs)
    good = []
    for report in reports:
        if isinstance(report, CompileReport):
            good.append(report)
        else:
            code, message, notes, hints = report
            raise QlagenError(code, message, notes=notes, hints=hints)
    judge(good)
    return tuple(good)


def judge(reports: Iterable[CompileReport]) -> None:
    """Raises E-SLOW naming every kernel that spills registers or whose wgmma are serialised."""
    faulty = [(report, report.faults()) for report in reports if report.faults()]
    if faulty:
        notes = [f"{report.kernel} ({report.data_type}): {fault}" for report, faults in faulty for fault in faults]
        hint = "give the role more registers, or take an issue order that holds fewer, in the schedule file"
        raise QlagenError("E-SLOW", f"{len(faulty)} kernels do not compile well", notes=notes, hints=[hint])


def _data_types(file: Path) -> tuple[str, ...]:
    return tuple(load_kernel(file).DATA_TYPES)


_Failure = tuple[str, str, tuple[str, ...], tuple[str, ...]]


def _compile_or_message(job: tuple[Path, str, Path | None]) -> CompileReport | _Failure:
    """The report, or the parts of an error: an exception with keyword arguments does not cross processes."""
    try:
        return compile_kernel(*job)
    except QlagenError as error:
        return error.code, error.message, error.notes, error.hints


def compile_kernel(file: Path, data_type: str, cache: Path | None = None) -> CompileReport:
    """Lowers and compiles one kernel file. Raises E-COMPILE and what `load_kernel` and `device_source` raise."""
    nvcc = find_tool("nvcc")
    if nvcc is None:
        hints = ["install the CUDA toolkit", "or put its bin folder on PATH, or set CUDA_HOME"]
        raise QlagenError("E-COMPILE", "there is no CUDA compiler: nvcc is not on PATH", hints=hints)
    kept = None if cache is None else cache / f"{file.stem}_{data_type}-{_digest(file, data_type, nvcc)}.json"
    if kept is not None and kept.is_file():
        return _from_json(kept.read_text(encoding="utf-8"))
    module = load_kernel(file)
    source = device_source(module, data_type)
    fast = ("--use_fast_math",) if module.PASS_CONFIGS.get("tl.enable_fast_math") else ()
    with tempfile.TemporaryDirectory(prefix="qlagen-compile-") as folder:
        text, cubin = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        text.write_text(source, encoding="utf-8")
        command = [nvcc, *FLAGS, *fast, *_include_flags(), "-o", str(cubin), str(text)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        said = result.stdout + result.stderr
        if result.returncode:
            message = f"nvcc rejects the CUDA of kernel {module.NAME} ({data_type})"
            raise QlagenError("E-COMPILE", message, notes=said.splitlines()[-10:])
        report = read_messages(module.NAME, data_type, said, _count_instructions(cubin))
    if kept is not None and cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(report)), encoding="utf-8")
        partial.replace(kept)
    return report


def read_messages(
    kernel: str, data_type: str, said: str, instructions: Iterable[tuple[str, int]] = ()
) -> CompileReport:
    """The figures in ptxas's messages."""
    return CompileReport(
        kernel=kernel,
        data_type=data_type,
        registers=max(map(int, re.findall(r"Used (\d+) registers", said)), default=0),
        spill_bytes=sum(map(int, re.findall(r"(\d+) bytes spill", said))),
        static_shared_bytes=max(map(int, re.findall(r"(\d+) bytes smem", said)), default=0),
        messages=tuple(line.strip() for line in _MESSAGE.findall(said)),
        instructions=tuple(instructions),
    )


def find_tool(name: str) -> str | None:
    """A CUDA tool on PATH, in CUDA_HOME, in the usual folder, or in the `nvidia` wheels."""
    places = [Path(os.environ["CUDA_HOME"]) / "bin"] if os.environ.get("CUDA_HOME") else []
    places.append(Path("/usr/local/cuda/bin"))
    wheels = importlib.util.find_spec("nvidia")
    for root in (wheels.submodule_search_locations or ()) if wheels else ():
        places += sorted(Path(root).glob("*/bin"))
    found = (shutil.which(name, path=str(place)) for place in places)
    return shutil.which(name) or next((path for path in found if path), None)


def _include_flags() -> list[str]:
    spec = importlib.util.find_spec("tilelang")
    if spec is None or spec.origin is None:
        raise QlagenError("E-COMPILE", "TileLang is not installed", hints=["install the `tilelang` package"])
    root = Path(spec.origin).parent
    return [f"-I{root / 'src'}", f"-I{root / '3rdparty' / 'cutlass' / 'include'}"]


def _digest(file: Path, data_type: str, nvcc: str) -> str:
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    parts = (str(_RECIPE), *FLAGS, data_type, version, importlib.metadata.version("tilelang"), file.read_text("utf-8"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _count_instructions(cubin: Path) -> tuple[tuple[str, int], ...]:
    disassembler = find_tool("nvdisasm")
    if disassembler is None:
        return ()
    text = subprocess.run([disassembler, "-c", str(cubin)], capture_output=True, text=True, check=False).stdout
    counts = Counter(match["opcode"] for match in _INSTRUCTION.finditer(text))
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _from_json(text: str) -> CompileReport:
    values = json.loads(text)
    values["messages"] = tuple(values["messages"])
    values["instructions"] = tuple((str(opcode), int(count)) for opcode, count in values["instructions"])
    return CompileReport(**values)
