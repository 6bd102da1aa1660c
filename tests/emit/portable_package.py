"""Emitted portable modules, imported from a folder of their own, and their inputs."""

from __future__ import annotations

import importlib
import itertools
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from qlagen.algebra.derive import derive
from qlagen.emit.portable import emit_portable
from qlagen.spec.model import OpSpec
from qlagen.verify.problem import recurrence_of
from qlagen.verify.reference import run
from tests.program.forms import small_spec

Array = npt.NDArray[np.float64]
ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "templates" / "library" / "package" / "portable"
_numbers = itertools.count()


@cache
def text(name: str, *edits: tuple[str, str], chunk: int | None = None) -> str:
    return emit_portable(derive(small_spec(name, *edits), chunk=chunk))


def load(folder: Path, source: str) -> ModuleType:
    """The module, beside the library's driver, in a package of its own below `folder`."""
    package = f"portable_{next(_numbers)}"
    shutil.copytree(RUNTIME, folder / package)
    (folder / package / "operator.py").write_text(source, encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(f"{package}.operator")
    finally:
        sys.path.remove(str(folder))


@dataclass
class Call:
    """Arguments of one call in float64, and the oracle's results."""

    spec: OpSpec
    arrays: dict[str, Array]
    state: Array | None
    offsets: npt.NDArray[np.int64] | None

    @property
    def wanted(self) -> tuple[Array, Array]:
        return run(recurrence_of(self.spec), self.arrays, self.offsets, self.state)

    def arguments(self, dtype: torch.dtype = torch.float64, grad: bool = False) -> list[Any]:
        """The inputs in the spec's order; scalars are numbers."""
        result: list[Any] = []
        for item in self.spec.inputs:
            array = self.arrays[item.name]
            tensor = torch.tensor(array).to(dtype)
            result.append(float(array) if item.heads == "none" else tensor.requires_grad_(grad))
        return result

    def run(self, module: ModuleType, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
        state = None if self.state is None else torch.tensor(self.state)
        offsets = None if self.offsets is None else torch.tensor(self.offsets)
        output, final = module.forward(*self.arguments(dtype), initial_state=state, cu_seqlens=offsets)
        return output, final


def make_call(
    spec: OpSpec,
    lengths: tuple[int, ...],
    *,
    packed: bool = False,
    padding: int = 0,
    state: bool = True,
    heads: tuple[int, int] = (2, 4),
    gate: float = 0.3,
    seed: int = 0,
) -> Call:
    """Random values. Equal lengths are batch rows unless `packed`; padding rows hold NaN."""
    random = np.random.default_rng(seed)
    sizes = dict(spec.dims)
    batch, tokens = (1, sum(lengths) + padding) if packed else (len(lengths), lengths[0])
    arrays: dict[str, Array] = {}
    for item in spec.inputs:
        if item.heads == "none":
            arrays[item.name] = np.asarray(0.37)
            continue
        count = heads[0] if item.heads == "key" else heads[1]
        drawn = random.standard_normal((batch, tokens, count, *(sizes[d] for d in item.dims)))
        if item.norm is not None:
            drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
        elif item.role == "log_gate":
            drawn = -gate * np.abs(drawn)
        elif not item.dims:
            drawn = 2 / (1 + np.exp(-drawn))
        if packed and padding:
            drawn[:, sum(lengths) :] = np.nan
        arrays[item.name] = drawn
    initial = random.standard_normal((len(lengths), heads[1], sizes["K"], sizes["V"])) if state else None
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64) if packed else None
    return Call(spec, arrays, initial, offsets)


def error(got: torch.Tensor, wanted: Array) -> float:
    """Largest difference, relative to the largest wanted entry."""
    difference = np.abs(got.detach().double().numpy() - wanted).max(initial=0)
    return float(difference / max(1.0, np.abs(wanted).max(initial=0)))
