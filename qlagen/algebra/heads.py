"""Value heads that share a key head: what they have in common, and values of sums over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from qlagen.algebra.evaluate import evaluate
from qlagen.algebra.fields import Array, Field
from qlagen.algebra.ir import Node, input_node, topological, transpose
from qlagen.algebra.walk import substitute


@cache
def per_key_head(node: Node, key_inputs: frozenset[str]) -> bool:
    """Whether all value heads of a key head have the same: it needs only their common inputs and sums over heads."""
    if node.op == "input":
        return node.value in key_inputs
    return node.op == "head_sum" or all(per_key_head(a, key_inputs) for a in node.args)


def evaluate_heads(
    nodes: Iterable[Node], heads: Sequence[Mapping[str, Array]], chunk: int, field: Field, sizes: Mapping[str, int]
) -> list[list[Array]]:
    """Values of the nodes for every head; sums over heads are taken over all of them.

    `heads` has the values of the inputs for each value head; those of the key head must be the same in all.
    """
    roots = tuple(nodes)
    envs = [dict(head) for head in heads]
    while sums := [n for n in topological(roots) if n.op == "head_sum"]:
        inner = sums[0]
        name = f"sum of heads {len(envs[0])}"
        parts = [evaluate(inner.args, env, chunk, field, sizes=sizes)[0] for env in envs]
        total = parts[0]
        for part in parts[1:]:
            total = field.reduce(total + part)
        for env in envs:
            env[name] = total
        known = input_node(name, inner.shape)
        roots = substitute(roots, {inner: known, transpose(inner): transpose(known)})
    return [evaluate(roots, env, chunk, field, sizes=sizes) for env in envs]
