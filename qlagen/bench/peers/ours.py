"""The emitted library, and its portable PyTorch implementation."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qlagen.bench.cases import Case, operators
from qlagen.bench.inputs import Inputs
from qlagen.bench.peers.base import Call, Implementation, UnsupportedError

if TYPE_CHECKING:
    import torch

_LEAVES = ("q", "k", "v", "g", "beta", "initial_state")
_GRADIENTS = ("dq", "dk", "dv", "dg", "dbeta", "d_initial_state")
_PORTABLE_ELEMENTS = 1 << 26
"""Tokens x value heads x V above which the portable implementation takes longer than a row is worth."""


class Ours(Implementation):
    distribution = "qla-ops"
    modules = ("qla_ops",)
    operators = operators()
    implementation: str | None = None
    """The library's `impl` argument; None lets it choose, and `strict` keeps it from falling back."""

    def __init__(self) -> None:
        import qla_ops

        self.library: Any = qla_ops
        try:
            accepted = inspect.signature(self._function(self.operators[0])).parameters
        except AttributeError as fault:
            raise ImportError(str(fault)) from None
        wanted = {"impl": self.implementation, "strict": self.implementation is None}
        self.settings = {name: value for name, value in wanted.items() if name in accepted and value}
        self.takes_host_offsets = "cu_seqlens_cpu" in accepted
        self.digest = _digest(Path(qla_ops.__file__).parent)

    def version(self) -> str:
        """The library's version and a hash of its code, so that new kernels are new rows."""
        return f"{getattr(self.library, '__version__', '0')}+{self.digest}"

    def compile_key(self, case: Case) -> str:
        """Heads and lengths are run-time values; which tile plan runs depends on how many CTAs there are, roughly."""
        return f"{case.traits.operator} {case.direction} {(len(case.lengths) * case.value_heads).bit_length()}"

    def _function(self, operator: str) -> Any:
        return getattr(self.library, f"chunk_{operator}")

    def forward(self, inputs: Inputs) -> Call:
        import torch

        function, arguments, options = self._arguments(inputs)

        def call() -> Any:
            with torch.no_grad():
                return function(*arguments, **options)

        return call

    def _run(self, inputs: Inputs) -> Any:
        function, arguments, options = self._arguments(inputs)
        return function(*arguments, **options)

    def _arguments(self, i: Inputs) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The offsets on the CPU too: who packs sequences knows their lengths, and other libraries read them back."""
        traits = i.case.traits
        gates = (*((i.g,) if traits.gate else ()), *((i.beta,) if traits.correction else ()))
        options = {"scale": i.scale, "initial_state": i.initial_state, "output_final_state": True}
        options |= {"cu_seqlens": i.cu_seqlens, **self.settings}
        if self.takes_host_offsets:
            options["cu_seqlens_cpu"] = i.cu_seqlens.cpu()
        return self._function(traits.operator), (i.q, i.k, i.v, *gates), options

    def kernels(self, inputs: Inputs) -> list[str]:
        """Names of the kernels that a call would launch."""
        function, arguments, options = self._arguments(inputs)
        return [launch.kernel for launch in self.library.explain(function, *arguments, **options).launches]

    def backward(self, inputs: Inputs) -> Call:
        """Through autograd, as a user gets it."""
        import torch

        leaves = {name: getattr(inputs, name).detach().requires_grad_() for name in _LEAVES}
        try:
            o, state = self._run(replace(inputs, **leaves))
        except self.library.ImplementationUnavailableError as fault:
            raise UnsupportedError(str(fault)) from fault
        if not o.requires_grad:
            raise UnsupportedError("has no backward pass")
        outer = [inputs.d_output, inputs.d_final_state]
        return lambda: torch.autograd.grad([o, state], list(leaves.values()), outer, retain_graph=True)

    def results(self, direction: str, returned: Any) -> dict[str, torch.Tensor]:
        if direction == "forward":
            return {"o": returned[0], "final_state": returned[1]}
        return dict(zip(_GRADIENTS, returned, strict=True))


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(file for kind in ("*.py", "*.cu") for file in folder.rglob(kind)):
        digest.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()[:8]


class Portable(Ours):
    """Plain PyTorch, for every device."""

    compiles = "process"
    implementation = "reference"

    def __init__(self) -> None:
        super().__init__()
        if not self.settings:
            raise ImportError("this qla_ops has no portable implementation to choose")

    def unsupported(self, case: Case) -> str:
        elements = case.tokens * case.value_heads * 128
        if reason := super().unsupported(case):
            return reason
        return "only timed on small rows" if elements > _PORTABLE_ELEMENTS else ""
