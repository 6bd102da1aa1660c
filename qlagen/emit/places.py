"""Where the chunks of a kernel lie whose chunks are independent.

Packed calls begin with a kernel that makes tables of all chunks. A kernel behind it need not wait for them where there
are few sequences: each warp reads the sequences' ends itself, two for each lane, and finds a chunk's among them.
"""

from __future__ import annotations

from qlagen.emit.context import Context

FEW = "few"
"""The integer that says whether there are few sequences."""
TABLED = "counted"
"""The first integer that follows from the sequences' ends."""
MOST_SEQUENCES = 64
"""Two for each lane of a warp; `places.cuh.jinja` has the number too."""
_PLACES = f'T.access_ptr(places[0], "rw", extent=2 * {MOST_SEQUENCES})'
OFFSETS = "given_offsets"
"""The sequences' offsets as the caller gave them."""


def finds_places(context: Context) -> bool:
    """Whether a kernel finds its chunks so: its tensors are callers'. One that reads what kernels before made waits."""
    rings = (ring.load for ring in context.schedule.rings if ring.load is not None)
    return not context.carried and all(load.tensor.layout == "token" for load in rings)


def counted_chunks() -> tuple[tuple[str, str], ...]:
    """Whether there are few sequences, and the number of their chunks then."""
    read = _call("read", f"T.address_of({OFFSETS}[0])", "wide_offsets", "sequences", "tokens")
    return ((FEW, f"T.if_then_else(sequences <= {MOST_SEQUENCES}, 1, 0)"), (TABLED, read))


def chunk_place() -> tuple[tuple[str, str], ...]:
    """First token and rows of the chunk in `slot`."""
    start = _call("start", "sequences", "T.address_of(chunk_first[slot])", "slot")
    rows = _call("rows", "sequences", "T.address_of(chunk_rows[slot])", "slot", "start")
    return (("start", start), ("rows", rows))


def _call(function: str, *arguments: str) -> str:
    given = ('"int32"', f'"places::{function}"', _PLACES, *arguments, "CHUNK")
    return "\n    ".join(("T.call_extern(", *(f"{argument}," for argument in given))) + "\n)"
