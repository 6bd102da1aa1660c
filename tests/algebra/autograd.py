"""Gradients of the token recurrence by torch: an oracle that shares only the spec with the derived backward pass."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from qlagen.algebra.build import build_recurrence, step_symbol
from qlagen.algebra.fields import Array
from qlagen.algebra.ir import Node, topological
from qlagen.spec.model import OpSpec


def value_of(root: Node, env: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The value of an expression of a recurrence."""
    values: dict[Node, torch.Tensor] = {}
    for node in topological((root,)):
        args = [values[a] for a in node.args]
        if node.op == "input":
            values[node] = env[node.value]
        elif node.op == "transpose":
            values[node] = args[0].T
        elif node.op == "matmul":
            values[node] = args[0] @ args[1]
        elif node.op == "multiply":
            values[node] = torch.ones(1, 1, dtype=torch.float64)
            for arg in args:
                values[node] = values[node] * arg
        else:
            assert node.op == "add", node
            values[node] = sum(c * a for c, a in zip(node.coefficients, args, strict=True))  # type: ignore[assignment]
    return values[root]


def gradients(
    spec: OpSpec, tensors: Mapping[str, Array], state: Array, output_seed: Array, state_seed: Array
) -> tuple[dict[str, Array], Array]:
    """Of <output_seed, outputs> + <state_seed, final state>: by input name, [T, n], and of the initial state."""
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in tensors.items()}
    first = carried = torch.tensor(state, requires_grad=True)
    output_node, state_node = build_recurrence(spec)
    steps = dict(spec.dims).get(spec.steps, 1)
    loss = torch.zeros((), dtype=torch.float64)
    for t in range(len(output_seed)):
        env = {spec.state: carried}
        for tensor in spec.inputs:
            leaf = leaves[tensor.name]
            if tensor.per_step:
                for index in range(steps):
                    env[step_symbol(tensor.token_symbol, index)] = leaf[t * steps + index][:, None]
                continue
            row = leaf if tensor.heads == "none" else leaf[t][:, None]
            env[tensor.token_symbol] = torch.exp(row) if tensor.role == "log_gate" else row
        loss = loss + (value_of(output_node, env)[:, 0] * torch.tensor(output_seed[t])).sum()
        carried = value_of(state_node, env)
    (loss + (carried * torch.tensor(state_seed)).sum()).backward()
    found = {name: leaf.grad for name, leaf in leaves.items()}
    return {n: np.asarray(g) for n, g in found.items() if g is not None}, np.asarray(first.grad)
