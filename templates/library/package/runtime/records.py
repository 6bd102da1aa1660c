"""What the runtime knows of an operator. Each generated module in `qla_ops.operators` holds one `Operator` record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

Heads = Literal["key", "value"]


@dataclass(frozen=True)
class TensorArgument:
    """A tensor argument, ``[B, T, heads, *dims]``."""

    name: str
    dims: tuple[str, ...]
    """Dimension symbols per token and head: ``()`` for a number, ``("K",)`` for a vector."""
    heads: Heads
    data: bool
    """True: 16-bit data, one type for all such arguments. False: computed in fp32, whatever its type."""
    log_gate: bool = False
    low: float | None = None
    """Declared lower bound of its entries (checked with ``QLA_OPS_DEBUG=1``)."""
    high: float | None = None
    normalise: bool = False
    """``use_qk_l2norm_in_kernel`` applies to it."""


@dataclass(frozen=True)
class ScalarArgument:
    """A number that holds for the whole call. Its default is ``base ** exponent``."""

    name: str
    base: str | float
    """A number, or the dimension symbol whose size it is."""
    exponent: float = 1.0

    def default(self, sizes: dict[str, int]) -> float:
        """The value that None stands for."""
        base = sizes[self.base] if isinstance(self.base, str) else self.base
        return float(float(base) ** self.exponent)


Argument = TensorArgument | ScalarArgument


@dataclass(frozen=True)
class Workspace:
    """A tensor that one kernel hands to a later one: ``[chunks, Hv, *dims]``, padded to whole chunks, or
    ``[chunks, Hv, entries]`` where a chunk's triangle lies packed in so many `entries`."""

    name: str
    dims: tuple[str, ...]
    data: bool
    entries: int = 0

    def tile(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """What a chunk and value head has, with the dimension symbols' `sizes`."""
        return (self.entries,) if self.entries else tuple(sizes[symbol] for symbol in self.dims)


@dataclass(frozen=True)
class Kernel:
    """One kernel file. It is built once for each data type."""

    name: str
    module: str
    """Its module, relative to ``qla_ops.kernels``."""
    tensors: tuple[str, ...]
    scalars: tuple[tuple[str, str], ...]
    """(name, ``float32`` or ``int32``)."""
    dynamic: tuple[str, ...]
    """Dimensions that are known at run time only."""
    kind: Literal["carried", "segment", "chunk_parallel"]
    """``carried`` walks the chunks of a sequence with a state; ``segment`` does so for the state alone."""
    value_tile: int
    ctas_per_sm: int
    data_types: tuple[str, ...]
    chunk_nanoseconds: tuple[int, int] = (0, 0)
    """Modelled time that a CTA with a state takes for a chunk: with all CTAs on an SM that fit, and with one."""
    item_heads: tuple[int, int] = (1, 1)
    """Of a ``chunk_parallel`` kernel: the key heads of an item, and how many value heads of each it has room for."""

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the built function's parameters, in order."""
        return (*self.tensors, *(name for name, _ in self.scalars), *self.dynamic)

    @cached_property
    def persistent(self) -> bool:
        """Whether its CTAs walk several items each, as many as `workers` says."""
        return "workers" in self.parameters


@dataclass(frozen=True)
class Program:
    """One launch: variants of a kernel that differ in speed only."""

    name: str
    variants: tuple[Kernel, ...]


@dataclass(frozen=True)
class Segments:
    """How sequences may be cut into segments that run at once. The program of the kind ``segment`` makes of each what
    it adds to the state, and the map that joins it to those before."""

    skips: bool
    """Whether the decay bounds a map, so that it may be left out where little is left of the state before."""
    condition: str
    """What the arguments must satisfy for the bound; empty for nothing. They are declared to."""


@dataclass(frozen=True)
class Operator:
    name: str
    function: str
    """Name of the public function."""
    arguments: tuple[Argument, ...]
    """In the public function's order."""
    head_names: tuple[str, str]
    """What messages call the number of key heads and of value heads."""
    dims: tuple[tuple[str, int], ...]
    """Sizes of the dimension symbols (and of the chunk, ``C``) that the kernels are built for."""
    programs: tuple[Program, ...]
    """In launch order; empty when there are only portable sources. One of the kind ``segment`` runs only where
    sequences are cut."""
    workspaces: tuple[Workspace, ...]
    portable: Callable[..., Any]
    segments: Segments | None = None
    """None: sequences are never cut."""
    obstacle: str = ""
    """Why it has no kernels, when it has none anywhere."""

    @cached_property
    def sizes(self) -> dict[str, int]:
        """`dims` by symbol."""
        return dict(self.dims)

    @property
    def chunk(self) -> int:
        """Tokens per chunk."""
        return self.sizes["C"]

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels, in launch order."""
        return tuple(kernel for program in self.programs for kernel in program.variants)

    @cached_property
    def tensors(self) -> tuple[TensorArgument, ...]:
        """The tensor arguments, in the public function's order."""
        return tuple(item for item in self.arguments if isinstance(item, TensorArgument))

    @cached_property
    def scalars(self) -> tuple[ScalarArgument, ...]:
        """The numbers, in the public function's order."""
        return tuple(item for item in self.arguments if isinstance(item, ScalarArgument))
