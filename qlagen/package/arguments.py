"""The public function's arguments, from the spec's inputs: signature, record and documentation of each."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from fractions import Fraction

from qlagen.errors import QlagenError
from qlagen.spec.model import Input, OpSpec

OPTIONS = (
    *("initial_state", "output_final_state", "use_qk_l2norm_in_kernel", "cu_seqlens", "cu_seqlens_cpu"),
    *("state_v_first", "auto_cp", "cp_threshold", "out", "final_state_out", "state_indices", "strict", "impl"),
)
"""Arguments that every public function has after the spec's inputs."""

KERNEL_NAMES = (
    *(
        "o",
        "final_state",
        "chunk_offsets",
        "chunk_first",
        "chunk_rows",
        "workers",
        "has_spare_chunks",
        "given_offsets",
        "offset_words",
        "wide_offsets",
        "segment_bounds",
    ),
    *("segment_offsets", "segment_chunks", "segment_sequence", "segment_state", "segment_joined", "segments", "joints"),
    *("segment_products", "rooms"),
    *("state_key_stride", "state_value_stride", "has_initial_state", "has_final_state", "skip_threshold", "turns"),
    *(
        "tokens",
        "key_heads",
        "value_heads",
        "sequences",
        "chunk_count",
        "chains",
        "chain_count",
        "key_dim",
        "value_dim",
    ),
)
"""Further names that the library passes to kernels."""

_DOC_WIDTH = 112


@dataclass(frozen=True)
class ArgumentView:
    """One argument, as its pieces of Python text."""

    name: str
    signature: str
    record: str
    doc: tuple[str, ...]
    """Lines of its entry in the docstring."""
    required: bool


def order_arguments(spec: OpSpec) -> tuple[Input, ...]:
    """The inputs in spec order, but those with a default last, as Python wants it.

    Raises E-RESERVED when an input has the name of another argument or of a kernel parameter.
    """
    for entry in spec.inputs:
        if entry.name in OPTIONS or entry.name in KERNEL_NAMES:
            message = f"the library has an argument {entry.name!r} of its own, so an input cannot have that name"
            hints = [f"rename it; taken are {', '.join(sorted((*OPTIONS, *KERNEL_NAMES)))}"]
            raise QlagenError("E-RESERVED", message, span=entry.span, hints=hints)
    optional = tuple(entry for entry in spec.inputs if entry.heads == "none")
    return (*(entry for entry in spec.inputs if entry not in optional), *optional)


def view_arguments(spec: OpSpec) -> tuple[ArgumentView, ...]:
    """The arguments in the order of the public function."""
    return tuple(_view(entry, spec) for entry in order_arguments(spec))


def is_normalised(entry: Input) -> bool:
    """Whether ``use_qk_l2norm_in_kernel`` applies: a data vector of length K on the key heads."""
    return entry.dtype == "data" and entry.heads == "key" and entry.width == "K"


def _view(entry: Input, spec: OpSpec) -> ArgumentView:
    if entry.heads == "none":
        base, exponent = read_default(entry.default or "1")
        record = f"ScalarArgument({entry.name!r}, {base!r}, {exponent!r})".replace("'", '"')
        doc = _wrap(entry.name, f"a number; None means {entry.default or '1'}.")
        return ArgumentView(entry.name, f"{entry.name}: float | None = None", record, doc, False)
    return ArgumentView(entry.name, f"{entry.name}: Tensor", _tensor_record(entry), _tensor_doc(entry, spec), True)


def read_default(text: str) -> tuple[str | float, float]:
    """A default as (base, exponent): ``K^-1/2`` is ("K", -0.5), ``2.0`` is (2.0, 1.0)."""
    power = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)\^(-?[1-9](?:/[1-9])?)", text.strip())
    return (power[1], float(Fraction(power[2]))) if power else (float(text), 1.0)


def _tensor_record(entry: Input) -> str:
    fields = [
        repr(entry.name),
        f"dims={entry.dims!r}",
        f"heads={entry.heads!r}",
        f"data={entry.dtype == 'data'}",
    ]
    low, high = entry.range
    fields += ["log_gate=True"] if entry.role == "log_gate" else []
    fields += [f"low={low!r}"] if low is not None else []
    fields += [f"high={high!r}"] if high is not None else []
    fields += ["normalise=True"] if is_normalised(entry) else []
    return f"TensorArgument({', '.join(fields)})".replace("'", '"')


def _tensor_doc(entry: Input, spec: OpSpec) -> tuple[str, ...]:
    heads = spec.head_names[0 if entry.heads == "key" else 1]
    shape = f"[{', '.join(('B', 'T', heads, *entry.dims))}]"
    if entry.dtype == "data":
        types = "bf16 or fp16, one type for all data (fp32 and fp64: portable implementation)"
    else:
        types = "fp32, bf16 or fp16, computed in fp32"
    notes = ["the natural logarithm of the decay"] if entry.role == "log_gate" else []
    notes += [_range(entry)] if entry.range != (None, None) else []
    notes += [f"of Euclidean norm at most {entry.norm:g}"] if entry.norm is not None else []
    return _wrap(entry.name, "; ".join((f"{shape}, {types}", *notes)) + ".")


def _wrap(name: str, text: str) -> tuple[str, ...]:
    return tuple(textwrap.wrap(f"{name}: {text}", _DOC_WIDTH, subsequent_indent="    ", break_long_words=False))


def _range(entry: Input) -> str:
    low, high = entry.range
    if low is not None and high is not None:
        return f"entries in [{low:g}, {high:g}]"
    return f"entries >= {low:g}" if low is not None else f"entries <= {high:g}"
