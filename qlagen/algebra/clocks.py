"""Modelled clocks of a kernel, from the throughput of a target: the serial chain of a walk and the busiest pipe.

A kernel that walks the chunks of a head cannot start a chunk before it has the state of the one before. Its time per
chunk is at least that of the chain of operations from the carried state to its successor, each with the latency after
which the next one may start, and at least that of the busiest of its pipes: tensor cores, lanes, special functions.
Memory traffic is an objective of its own. The model ranks plans; it predicts no times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from qlagen.algebra.cost import DATA_BYTES, CostModel
from qlagen.algebra.ir import Node, depends_on
from qlagen.algebra.target import Throughput


@dataclass(frozen=True)
class Clocks:
    """Clocks per chunk and value head."""

    model: CostModel
    facts: Throughput
    _latency: dict[Node, float] = field(default_factory=dict, compare=False, repr=False)
    _depth: dict[Node, int] = field(default_factory=dict, compare=False, repr=False)

    def latency(self, node: Node) -> float:
        """From the carried value to the expression; 0 if the expression does not need it."""
        if self.model.state not in depends_on(node):
            return 0.0
        found = self._latency.get(node)
        if found is None:
            below = max((self.latency(a) for a in node.args), default=0.0)
            found = self._latency[node] = below + self._own(node)
        return found

    def depth(self, node: Node) -> int:
        """Matrix products on the longest path from the carried value to the expression."""
        if self.model.state not in depends_on(node):
            return 0
        found = self._depth.get(node)
        if found is None:
            below = max((self.depth(a) for a in node.args), default=0)
            found = self._depth[node] = below + self.model.is_gemm(node)
        return found

    def busiest(self, nodes: Iterable[Node]) -> float:
        """Of tensor cores, lanes and special functions the one with most work when all these are computed."""
        works = [self.model.work(node) for node in nodes]
        return max(
            sum(w.multiply_adds for w in works) / self.facts.tensor_multiply_adds,
            sum(w.elementwise for w in works) / self.facts.elements,
            sum(w.exps for w in works) / self.facts.special_functions,
        )

    def _own(self, node: Node) -> float:
        if node.op == "input":
            return 0.0
        work = self.model.work(node)
        clocks = work.elementwise / self.facts.elements + work.exps / self.facts.special_functions
        if self.model.is_gemm(node):
            carried = (a for a in self.model.converted(node) if self.model.state in depends_on(a))
            converted = sum(self.model.entries(a.shape) for a in carried if not self.model.is_data(a))
            clocks += converted * DATA_BYTES * self.facts.slots_per_element / self.facts.shared_memory_bytes
            clocks += work.multiply_adds / self.facts.tensor_multiply_adds + self.facts.dependent_gemm_latency
        return clocks
