"""Facts about a GPU that scheduling needs: limits, and clocks per kind of step."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from qlagen.errors import QlagenError, did_you_mean
from qlagen.spec.document import read_document
from qlagen.spec.fields import Table

_MOST = 1 << 30


@dataclass(frozen=True)
class Clocks:
    """Modelled clocks of one warpgroup (128 threads). They rank issue orders and decide nothing else."""

    gemm_m64n64k16: int
    fetch_register: int
    cast_register: int
    put_register: int
    element_half: int
    gate_map: int
    vector: int
    scan: int
    inverse: int
    inverse_registers: int
    """Registers per thread of an inverse's own."""
    inverse_heads: int
    inverse_heads_registers: int
    tie_percent: int
    """Orders whose modelled times differ by no more rank by the registers that they hold."""


@dataclass(frozen=True)
class PlanCosts:
    """Modelled nanoseconds by which the library chooses segments and tiles at run time."""

    start: int
    """A CTA's start and end."""
    empty: int
    """A CTA that finds nothing to do."""
    launch: int
    search: int
    """Weighing the lengths of packed sequences on the device."""
    join: int
    """Carrying a state over one segment."""
    undecayed_percent: int
    """Of the heads: those whose segments need a map."""
    warm_chunks: int
    """Chunks after which the other heads have forgotten their state."""
    turn_chunks: int
    """Chunks of a segment from which on the kernel for segments starts those first that are walked as a whole."""
    long_percent: int
    """Of packed calls: those that are mostly one long sequence."""
    tie_percent: int
    chunks: tuple[tuple[str, int, int, int], ...]
    """(kind of kernel, value tile, nanoseconds of a chunk with all CTAs on an SM that fit, and with one)."""

    def chunk_nanoseconds(self, kind: str, value_tile: int) -> tuple[int, int]:
        """Of a kernel with a state, SMs full and with one CTA: those of the nearest tile known; 0 for other kinds."""
        known = [(abs(tile - value_tile), tile, times) for name, tile, *times in self.chunks if name == kind]
        full, alone = min(known)[2] if known else (0, 0)
        return full, alone


@dataclass(frozen=True)
class Target:
    """One GPU. Bytes, registers and counts as the field names say."""

    name: str
    gpu: str
    streaming_multiprocessors: int
    warps_per_sm: int
    shared_per_sm: int
    shared_reserved_per_cta: int
    shared_alignment: int
    registers_per_sm: int
    registers_per_thread: int
    register_granule: int
    least_registers: int
    most_registers: int
    overhead_state: int
    """Registers per thread beside live fragments in the role that carries the state."""
    overhead_other: int
    clocks: Clocks
    plan: PlanCosts

    def shared_limit(self, ctas_per_sm: int) -> int:
        """Bytes of shared memory that one of `ctas_per_sm` CTAs may use."""
        return self.shared_per_sm // ctas_per_sm - self.shared_reserved_per_cta

    def registers_without_setmaxnreg(self, threads: int, ctas_per_sm: int) -> int:
        """Registers per thread that the compiler may use when all threads of a CTA have equally many."""
        return min(self.registers_per_thread, self._share(threads, ctas_per_sm))

    def register_pool(self, threads: int, ctas_per_sm: int) -> int:
        """Registers of a whole CTA: what it is launched with, which setmaxnreg can only deal out anew."""
        return threads * self._share(threads, ctas_per_sm)

    def _share(self, threads: int, ctas_per_sm: int) -> int:
        share = self.registers_per_sm // (threads * ctas_per_sm) // self.register_granule * self.register_granule
        return min(self.most_registers, share)


def target_names() -> tuple[str, ...]:
    """Names of the targets that this release knows."""
    files = resources.files("qlagen.targets").iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def load_target(name: str) -> Target:
    """The facts of one target. Raises E-TARGET for a name that is not known."""
    names = target_names()
    if name not in names:
        message = f"there is no target {name!r}"
        notes = [f"known targets: {', '.join(names)}"]
        raise QlagenError("E-TARGET", message, notes=notes, hints=did_you_mean(name, names))
    file = f"{name}.toml"
    text = resources.files("qlagen.targets").joinpath(file).read_text(encoding="utf-8")
    return parse_target(text, file)


def parse_target(text: str, file: str) -> Target:
    """Read a target's text. Raises the codes of `qlagen.spec.document` and `qlagen.spec.fields`."""
    document = read_document(text, file)
    top = Table(document, (), document.data)
    top.check_keys(("target", "shared_memory", "registers", "throughput", "clocks", "plan"))
    facts, shared, registers = top.table("target"), top.table("shared_memory"), top.table("registers")
    facts.check_keys(("name", "gpu", "streaming_multiprocessors", "warps_per_sm"))
    shared.check_keys(("per_sm", "reserved_per_cta", "alignment"))
    registers.check_keys(("per_sm", "per_thread", "granule", "least", "most", "overhead_state", "overhead_other"))
    return Target(
        name=facts.string("name"),
        gpu=facts.string("gpu"),
        streaming_multiprocessors=facts.integer("streaming_multiprocessors", 1, _MOST),
        warps_per_sm=facts.integer("warps_per_sm", 1, _MOST),
        shared_per_sm=shared.integer("per_sm", 1, _MOST),
        shared_reserved_per_cta=shared.integer("reserved_per_cta", 0, _MOST),
        shared_alignment=shared.integer("alignment", 1, _MOST),
        registers_per_sm=registers.integer("per_sm", 1, _MOST),
        registers_per_thread=registers.integer("per_thread", 1, _MOST),
        register_granule=registers.integer("granule", 1, _MOST),
        least_registers=registers.integer("least", 1, _MOST),
        most_registers=registers.integer("most", 1, _MOST),
        overhead_state=registers.integer("overhead_state", 0, _MOST),
        overhead_other=registers.integer("overhead_other", 0, _MOST),
        clocks=_read_clocks(top.table("clocks")),
        plan=_read_plan(top.table("plan")),
    )


def _read_clocks(table: Table) -> Clocks:
    names = tuple(Clocks.__dataclass_fields__)
    table.check_keys(names)
    return Clocks(**{name: table.integer(name, 0, _MOST) for name in names})


def _read_plan(table: Table) -> PlanCosts:
    chunks = {f"{kind}_v{tile}": (kind, tile) for kind in ("carried", "segment") for tile in (128, 64)}
    names = tuple(name for name in PlanCosts.__dataclass_fields__ if name != "chunks")
    table.check_keys((*chunks, *names), optional=tuple(f"{name}_alone" for name in chunks))
    numbers = {name: table.integer(name, 0, 100 if name.endswith("percent") else _MOST) for name in names}
    times = []
    for name, (kind, tile) in chunks.items():
        full = table.integer(name, 1, _MOST)
        alone = f"{name}_alone"
        times.append((kind, tile, full, table.integer(alone, 1, _MOST) if alone in table.values else full))
    return PlanCosts(**numbers, chunks=tuple(times))
