"""A kernel's parameters, and the names it may not use for them."""

from __future__ import annotations

import keyword

from qlagen.emit.context import FULL, Context, dtype_text, tensor_shape
from qlagen.emit.file_views import TensorView
from qlagen.emit.places import OFFSETS, finds_places
from qlagen.errors import QlagenError
from qlagen.program.ir import Load, Store, Tensor

_STATE_SHAPE = ("sequences", "value_heads", f"{FULL['K']} * {FULL['V']}")
_BOTH = f"({FULL['V']} + {FULL['K']})"
"""Columns of a segment's state and map."""
_JOINT_SHAPE = ("joints", "value_heads", f"{_BOTH} * {FULL['K']}")
"""The last segment of a sequence is joined to nothing: it has no row."""
_ORDER = (
    *("tokens", "key_heads", "value_heads", "sequences", "segments", "segment_bounds", "joints", "chunk_count"),
    "offset_words",
)
_LOCAL = (
    "T tilelang build turned data_type tx warp lane block step row column entry sequence sequences"
    " value_head value_heads key_head key_heads value_column first end first_slot whole iterations start rows slot item"
    " cuts tokens chunk_count workers chunk_first chunk_rows initial_state final_state"
    " used has_spare_chunks segment_bounds given_offsets offset_words wide_offsets few counted places"
    " segment segments segment_offsets segment_chunks segment_sequence segment_state"
    " sequence_before sequence_after opens follows closes"
    " left_due left_segment left_sequence left_value_head left_value_column"
    " late tiles place strip done joint segment_joined skip_threshold turns joints active chunks warm_up joined"
    " state_key_stride state_value_stride has_initial_state has_final_state"
    " ratio groups units group head heads keys load_heads clear_tiles head_inverse sums lane_sum lane_before part"
    " row_sums accumulated inverse blocks"
)
_CXX = (
    "alignas alignof asm auto bool case catch char class concept const constexpr default delete do double enum explicit"
    " export extern false float friend goto inline int long mutable namespace new noexcept operator private protected"
    " public register requires short signed sizeof static struct switch template this thread_local throw true typedef"
    " typeid typename union unsigned using virtual void volatile wchar_t"
)
RESERVED = frozenset((*_LOCAL.split(), *_CXX.split(), *keyword.kwlist))


def parameters(context: Context) -> tuple[TensorView, ...]:
    """Tensor parameters in order: loads, tables, states to start from, stores, the final state."""
    program = context.schedule.program
    loads = tuple(_tensor(o.tensor) for o in program.operations if isinstance(o, Load) and o.key == 0)
    stores = tuple(_tensor(store.tensor) for store in program.stores)
    if not context.carried:
        chunks = (_view(name, ("chunk_count",), '"int32"') for name in ("chunk_first", "chunk_rows"))
        tables = (*chunks, _view("segment_chunks", ("segment_bounds",), '"int32"'))
        given = (_view(OFFSETS, ("offset_words",), '"int32"'),) if finds_places(context) else ()
        return (*loads, *tables, *given, *stores)
    bounds = (_view(name, ("segments + 1",), '"int32"') for name in ("segment_offsets", "segment_chunks"))
    tables = (*bounds, _view("segment_sequence", ("segments",), '"int32"'))
    initial, final = (_view(name, _STATE_SHAPE, '"float32"') for name in ("initial_state", "final_state"))
    reached = _view("segment_state", _JOINT_SHAPE, '"float32"')
    if context.segment is not None:
        joined = _view("segment_joined", ("joints", "value_heads"), '"int32"')
        return (*loads, *tables, initial, reached, joined)
    return (*loads, *tables, initial, reached, *stores, final)


def state_columns(context: Context) -> str:
    """Columns of V that the CTAs of one head share out: with those of a segment's map if it is made."""
    return FULL["V"] if context.segment is None else _BOTH


def _tensor(tensor: Tensor) -> TensorView:
    return _view(tensor.name, tensor_shape(tensor), dtype_text(tensor.dtype))


def _view(name: str, shape: tuple[str, ...], dtype: str) -> TensorView:
    comma = "," if len(shape) == 1 else ""
    return TensorView(name, f"({', '.join(shape)}{comma})", dtype)


def scalars(context: Context) -> tuple[tuple[str, str], ...]:
    """Scalar parameters in order, with their types."""
    own = tuple((name, "float32") for name in context.schedule.program.scalars)
    if not context.carried:
        names = ("sequences", "wide_offsets") if finds_places(context) else ()
        return (*own, *((name, "int32") for name in ("workers", "has_spare_chunks", *names)))
    workers = (("workers", "int32"),) if context.persistent else ()
    strides = tuple((name, "int32") for name in ("state_key_stride", "state_value_stride", "has_initial_state"))
    if context.segment is not None:
        skip = () if context.segment.bound is None else (("skip_threshold", "float32"),)
        turns = (("turns", "int32"),) if context.in_turns else ()
        return (*own, *strides, *skip, *turns, *workers)
    return (*own, *strides, ("has_final_state", "int32"), *workers)


def dynamic_dimensions(context: Context) -> tuple[str, ...]:
    """Run-time dimensions that the parameters' shapes mention."""
    words = {word for view in parameters(context) for word in view.shape.strip("(,)").replace(",", " ").split()}
    return tuple(name for name in _ORDER if name in words)


def token_stores(context: Context) -> tuple[Store, ...]:
    """Outputs by token. Raises E-EMIT for one in a chunk-parallel kernel, which does not know where sequences end."""
    found = tuple(store for store in context.schedule.program.stores if store.tensor.layout == "token")
    if found and not context.carried:
        raise QlagenError(
            "E-EMIT",
            f"the chunk-parallel program {context.schedule.program.name} stores {found[0].tensor.name} by token",
            notes=["it has no table of sequences, so nobody would zero the rows past the last one"],
            hints=["store it padded to whole chunks"],
        )
    return found


def check_names(context: Context) -> None:
    """Raises E-EMIT-NAME when a tensor or scalar has a name that the kernel's text uses itself."""
    program = context.schedule.program
    tensors = [o.tensor.name for o in program.operations if isinstance(o, Load) and o.key == 0]
    names = (*tensors, *(store.tensor.name for store in program.stores), *program.scalars)
    for name in names:
        if name in RESERVED or (name.isupper() and len(name) > 1):
            raise QlagenError(
                "E-EMIT-NAME",
                f"{name!r} cannot name a tensor or scalar of a kernel: the kernel's text uses it",
                hints=[f"call the input {name}_in, for example"],
            )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise QlagenError("E-EMIT-NAME", f"program {program.name} has two parameters called {twice!r}")
