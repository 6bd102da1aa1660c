"""Running an emulated kernel, and turning what went wrong into an error a person can act on."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from qlagen.errors import QlagenError
from qlagen.verify.emulator.arguments import Arguments, read_bytes, write_bytes
from qlagen.verify.emulator.lower import LoweredKernel

_BYTE = re.compile(r"shared byte (?P<offset>\d+)")
Block = tuple[int, int, int]

_FENCE_RULES = {"off": 0, "path": 1, "writer": 2}
_HINTS = {
    "PROXY-FENCE": "let every writing thread call T.fence_proxy_async() after its writes, before it signals the reader",
    "DEADLOCK": "compare arrive counts and phases of the barriers named above with the arrivals in the kernel",
    "OVER-ARRIVAL": "the barrier's count is too low, or a thread arrives again before the phase has completed",
    "IN-FLIGHT": "wait for every load and store before the kernel ends",
    "REGISTERS": "the registers of all warps together are fixed at launch: an increase needs a decrease elsewhere",
}


@dataclass(frozen=True)
class Mode:
    """How the emulator orders what a GPU leaves open. The default is eager and in turn.

    lazy: a wgmma reads its operands and writes its accumulator only when its group is waited for, not at commit.
    late: TMA and cp.async (and lazy wgmma) finish as late as possible: loads land and stores read shared memory when
        no warp can run, or, with a seed, at a random moment.
    seed: warps run by random priorities, with preemption at every synchronisation; None runs warps in turn.
    fences: which proxy fence wgmma and TMA want between an ordinary write to shared memory and their read: one by the
        writing thread, or for a store by the thread that issues it ("writer"); one by the writing or the reading thread
        ("path", the rule of the PTX memory model); or none ("off").
    """

    lazy: bool = False
    late: bool = False
    seed: int | None = None
    fences: Literal["writer", "path", "off"] = "writer"

    def __str__(self) -> str:
        words = ["lazy" if self.lazy else "", "late" if self.late else ""]
        words += [f"seed {self.seed}"] if self.seed is not None else []
        return " ".join(word for word in words if word) or "eager"


STANDARD_MODES = (
    Mode(),
    Mode(lazy=True),
    Mode(late=True),
    Mode(lazy=True, late=True),
    *(Mode(lazy=True, late=True, seed=seed) for seed in range(4)),
    *(Mode(late=True, seed=seed) for seed in range(4, 6)),
)
"""The modes a kernel should pass, bit for bit alike; the seeded ones expose most ordering faults."""


_ONE_AT_A_TIME = threading.RLock()  # the stacks of the fibers belong to one launch
_STACKS: list[int] = []


def _share_stacks(library: ctypes.CDLL) -> None:
    """Gives `library` the stacks that the first library of this process has mapped."""
    library.emulator_map_stacks.restype = ctypes.c_void_p
    with _ONE_AT_A_TIME:
        if not _STACKS:
            _STACKS.append(library.emulator_map_stacks())
        library.emulator_use_stacks(ctypes.c_void_p(_STACKS[0]))


class EmulatedKernel:
    """A generated kernel, compiled for the CPU. Call it with tensors and numbers by name."""

    def __init__(self, name: str, lowered: LoweredKernel, library: Path) -> None:
        self.name = name
        self.lowered = lowered
        self.library = library
        self._loaded = ctypes.CDLL(str(library))
        self._loaded.get_last_error.restype = ctypes.c_char_p
        self._loaded.emulator_failure.restype = ctypes.c_char_p
        _share_stacks(self._loaded)

    def __call__(self, *, mode: Mode = Mode(), blocks: Sequence[Block] = (), **arguments: Any) -> None:
        """`run` with the arguments as keywords."""
        self.run(arguments, mode, blocks)

    def run(
        self,
        arguments: Mapping[str, Any],
        mode: Mode = Mode(),
        blocks: Sequence[Block] = (),
        handed_over: Collection[str] = (),
    ) -> None:
        """Runs the host `call`: encodes tensor maps, then every block of every launch, or only `blocks` (x, y, z).

        Tensors are contiguous CPU tensors and are changed in place; dynamic dimensions follow from their shapes.
        Every block starts with shared memory full of NaN. Tensors in `handed_over`, which the kernel must not write,
        are made by the kernel before: in every block they are full of NaN until a thread waits for that kernel's end,
        in late modes while any warp can run. Raises QlagenError: E-EMU-ARGUMENT for a wrong argument, E-EMU-<KIND> for
        what a kernel did wrong (DEADLOCK, OVER-ARRIVAL, UNINITIALISED, SHARED-BOUNDS, MISALIGNED, BARRIER-COUNT,
        DIVERGED, REGISTERS, PROXY-FENCE, IN-FLIGHT, TENSOR-MAP, OUT-OF-BOUNDS, ...).
        """
        bound = Arguments(self.lowered.parameters, arguments)
        flat = [coordinate for block in blocks for coordinate in block]
        chosen = (ctypes.c_uint * max(1, len(flat)))(*flat)
        seeded, seed = int(mode.seed is not None), ctypes.c_uint64(mode.seed or 0)
        switches = (int(mode.lazy), int(mode.late), seeded, seed, _FENCE_RULES[mode.fences])
        with _ONE_AT_A_TIME:
            self._loaded.emulator_configure(*switches, chosen, len(blocks))
            copies = [bound.buffers[name].held() for name in handed_over]
            for address, held, count in copies:
                self._loaded.emulator_hand_over(ctypes.c_void_p(address), held, ctypes.c_uint64(count))
            code = self._loaded.init() or self._loaded.call(*bound.c_arguments, ctypes.c_void_p(0))
        bound.finish(self.name)
        if code:
            raise self._error(mode)

    def run_in_modes(self, arguments: Mapping[str, Any], modes: Sequence[Mode] = STANDARD_MODES) -> None:
        """Runs once in every mode, from the same tensors, and leaves the results of the last.

        Raises QlagenError E-EMU-ORDER when a result differs from that of the first mode in any bit: then a value
        depends on an order that the GPU leaves open. (Floating-point atomics do so by nature.)
        """
        tensors = {p.name: arguments[p.name] for p in self.lowered.parameters if p.is_tensor and p.name in arguments}
        before = {name: read_bytes(tensor) for name, tensor in tensors.items()}
        first: dict[str, bytes] = {}
        for mode in modes:
            for name, tensor in tensors.items():
                write_bytes(tensor, before[name])
            self.run(arguments, mode)
            results = {name: read_bytes(tensor) for name, tensor in tensors.items()}
            first = first or results
            differing = [name for name in tensors if results[name] != first[name]]
            if differing:
                text = f"kernel {self.name!r}: {', '.join(differing)} differ between the modes {modes[0]} and {mode}"
                raise QlagenError("E-EMU-ORDER", text, hints=("a wait, a barrier or a release is missing",))

    def _error(self, mode: Mode) -> QlagenError:
        text = self._loaded.emulator_failure().decode()
        if not text:
            return QlagenError("E-EMU-LAUNCH", f"kernel {self.name!r}: {self._loaded.get_last_error().decode()}")
        kind, place, message, *notes = self._with_names(text).split("\n")
        hints = (_HINTS[kind],) if kind in _HINTS else ()
        return QlagenError(
            f"E-EMU-{kind}", f"kernel {self.name!r}, {place}, mode {mode}: {message}", notes=notes, hints=hints
        )

    def _with_names(self, text: str) -> str:
        """Adds the name of the shared buffer to every place given as a byte of shared memory."""
        buffers = self.lowered.shared_buffers

        def named(match: re.Match[str]) -> str:
            offset = int(match["offset"])
            start = max((start for _, start in buffers if start <= offset), default=None)
            if start is None:
                return match[0]
            owners = "/".join(name for name, other in buffers if other == start)  # buffers may share their place
            return f"{match[0]} ({owners} + {offset - start})"

        return _BYTE.sub(named, text)
