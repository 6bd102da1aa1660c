"""Facts about a GPU that the bills of whole programs need: what one streaming multiprocessor does per clock."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from qlagen.errors import QlagenError, did_you_mean
from qlagen.spec.document import read_document
from qlagen.spec.fields import Table

DEFAULT = "sm_90a"
_MOST = 1 << 30


@dataclass(frozen=True)
class Throughput:
    """Per streaming multiprocessor and clock. The target's file says where each number comes from."""

    tensor_multiply_adds: int
    lanes: int
    slots_per_element: int
    """Issue slots of one elementwise operation."""
    special_functions: int
    memory_bytes: int
    shared_memory_bytes: int
    dependent_gemm_latency: int
    """Clocks from the end of a matrix product to the start of one that needs it, beside their own."""
    shared_memory: int
    """Bytes of shared memory, not per clock."""

    @property
    def elements(self) -> float:
        """Elementwise operations per clock."""
        return self.lanes / self.slots_per_element


def load_throughput(target: str = DEFAULT) -> Throughput:
    """The throughput of a target. Raises E-TARGET for a name that is not known."""
    folder = resources.files("qlagen.targets")
    names = sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))
    if target not in names:
        notes = [f"known targets: {', '.join(names)}"]
        raise QlagenError("E-TARGET", f"there is no target {target!r}", notes=notes, hints=did_you_mean(target, names))
    file = f"{target}.toml"
    document = read_document(folder.joinpath(file).read_text(encoding="utf-8"), file)
    top = Table(document, (), document.data)
    table = top.table("throughput")
    fields = tuple(f for f in Throughput.__dataclass_fields__ if f != "shared_memory")
    table.check_keys(fields)
    numbers = {name: table.integer(name, 1, _MOST) for name in fields}
    return Throughput(**numbers, shared_memory=top.table("shared_memory").integer("per_sm", 1, _MOST))
