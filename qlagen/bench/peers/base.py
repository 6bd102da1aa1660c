"""What the benchmark asks of an implementation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar

from qlagen.bench.cases import Case
from qlagen.bench.inputs import Inputs

if TYPE_CHECKING:
    import torch

Call = Callable[[], Any]
"""One run of the operator on prepared inputs. What it returns goes to `Implementation.results`."""


class UnsupportedError(Exception):
    """This implementation does not serve this case; the message says why."""


class Implementation(ABC):
    """One library. The constructor imports it, and raises ImportError when it is not there.

    Conversions that a user of the library would do once, or not at all, belong into `forward` and `backward`, which
    are not timed; only the call that they return is.
    """

    distribution: str
    """The name of the package whose version is recorded."""
    modules: tuple[str, ...]
    """The folders of its code, for its size."""
    operators: tuple[str, ...] = ("gated_delta_rule",)
    """Names of the operators of the grid that it has."""
    compiles: str = "disk"
    """Where compiled kernels are kept: on "disk", so that other processes can compile them, or in the "process"."""
    environment: ClassVar[Mapping[str, str]] = {}
    """Environment variables of the processes that only compile, for whatever implementation."""

    def version(self) -> str:
        return metadata.version(self.distribution)

    def unsupported(self, case: Case) -> str:
        """Why a case cannot be served; empty when it can."""
        name = case.traits.operator
        return "" if name in self.operators else f"has no {name}"

    def compile_key(self, case: Case) -> str:
        """Cases with one key run the same compiled kernels."""
        return f"{case.traits.operator} {case.direction} {case.heads}"

    def before_compiling(self) -> None:  # noqa: B027 - most have nothing to do here
        """Called in a process that only compiles: the place to switch off tuning by timing."""

    @abstractmethod
    def forward(self, inputs: Inputs) -> Call:
        """A run with initial state, giving o and the final state."""

    def backward(self, inputs: Inputs) -> Call:
        """A run of the gradients only; what it needs of the forward pass is computed here."""
        raise UnsupportedError("has no backward pass")

    def public(self, inputs: Inputs) -> Call:
        """The forward call as a user writes it, for the time that the host spends."""
        return self.forward(inputs)

    @abstractmethod
    def results(self, direction: str, returned: Any) -> dict[str, torch.Tensor]:
        """Names and common layouts (those of `Inputs`) for what a call returned."""


def gradients(returned: Any) -> dict[str, torch.Tensor]:
    """(dq, dk, dv, dbeta, dg, d_initial_state, ...), the order of most libraries."""
    names = ("dq", "dk", "dv", "dbeta", "dg", "d_initial_state")
    return dict(zip(names, returned[: len(names)], strict=True))
