"""What expressions are made of inside one program: loaded tensors, numbers, the carried value."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qlagen.algebra.build import chunk_inputs
from qlagen.algebra.ir import Node, is_lower
from qlagen.program.hoist import Hoisted
from qlagen.program.ir import Dims, Load, Scan, Tensor
from qlagen.spec.model import Input, OpSpec, Shape


@dataclass(frozen=True)
class Leaf:
    """A value that a program finds ready: `load` says from where, unless it is a number or the carried value.

    `scan` makes a cumulative gate of the load.
    """

    name: str
    load: Load | None = None
    scan: Scan | None = None
    is_scalar: bool = False


Leaves = Mapping[Node, Leaf]
"""In the order in which a program loads them."""


def prepare_leaves(spec: OpSpec) -> dict[Node, Leaf]:
    """Inputs as the caller gives them; cumulative gates are made here."""
    nodes = chunk_inputs(spec)
    return {nodes[item.chunk_symbol]: _input_leaf(spec, item) for item in spec.inputs}


def carried_leaves(spec: OpSpec, tensors: Mapping[Node, Tensor], origins: Mapping[Node, str]) -> dict[Node, Leaf]:
    """Inputs, the carried value, and what an earlier program stored in `tensors`; `origins` are their spec stages."""
    nodes = chunk_inputs(spec)
    plain = [item for item in spec.inputs if item.role != "log_gate"]
    leaves = {nodes[item.chunk_symbol]: _input_leaf(spec, item) for item in plain}
    for node, tensor in tensors.items():
        leaves[node] = Leaf(tensor.name, Load(tensor.name, tensor, origins.get(node, "")))
    return leaves | {nodes[spec.state]: Leaf(spec.state)}


def _input_leaf(spec: OpSpec, item: Input) -> Leaf:
    if item.heads == "none":
        return Leaf(item.name, is_scalar=True)
    tensor = Tensor(item.name, _dims((spec.rows_of(item), item.width)), item.dtype, item.heads, "token")
    load = Load(item.name, tensor)
    if item.role != "log_gate":
        return Leaf(item.name, load)
    return Leaf(item.chunk_symbol, load, Scan(item.chunk_symbol, item.name))


def _dims(shape: Shape) -> Dims:
    """The dimensions of a value in a program: vectors have no orientation."""
    return tuple(side for side in shape if side != "1")


def gate_names(spec: OpSpec) -> dict[Node, str]:
    """What derived values call a cumulative gate: the input's name."""
    nodes = chunk_inputs(spec)
    return {nodes[item.chunk_symbol]: item.name for item in _gates(spec)}


def chunk_tensors(
    spec: OpSpec, hoisted: Hoisted, stages: Mapping[Node, str], origins: Mapping[Node, str]
) -> dict[Node, Tensor]:
    """The tensors that hand hoisted values to the walk.

    Names: a stage's in lower case, ``<stage>_inverse`` of a part of one (`origins`), ``<gate>_cum``.
    """
    taken = {item.name for item in spec.inputs} | {"o"}
    tensors: dict[Node, Tensor] = {}
    for node in hoisted.matrices:
        name = _unused((stages.get(node) or f"{origins[node]}_inverse").lower(), taken)
        tensors[node] = Tensor(name, _dims(node.shape), "data", "value", "chunk", is_lower(node))
    names = gate_names(spec)
    for node in names:
        if node in hoisted.gates:
            name = _unused(f"{names[node]}_cum", taken)
            tensors[node] = Tensor(name, _dims(node.shape), "float32", "value", "chunk")
    return tensors


def _unused(name: str, taken: set[str]) -> str:
    while name in taken or keyword.iskeyword(name):
        name += "_"
    taken.add(name)
    return name


def _gates(spec: OpSpec) -> Iterable[Input]:
    return (item for item in spec.inputs if item.role == "log_gate")
