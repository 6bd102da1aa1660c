"""Random expressions: what the program stage takes, it computes."""

from __future__ import annotations

import numpy as np

from qlagen.algebra.build import chunk_inputs
from qlagen.algebra.derivation import Derivation, Form
from qlagen.algebra.ir import (
    Node,
    decay,
    from_start,
    inverse,
    linear,
    mask,
    matmul,
    multiply,
    to_end,
    total,
    transpose,
)
from qlagen.errors import QlagenError
from qlagen.program.plan import build_plan
from tests.program.forms import as_derivation, check_one_chunk, small_spec

STEPS = 14


class Grower:
    """A pool of expressions that grows by random operations on what is in it."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.inputs = chunk_inputs(small_spec("gated_delta_rule"))
        gate = self.inputs.pop("G")
        self.pool = [*self.inputs.values(), from_start(gate), to_end(gate), total(gate), decay(gate), mask("lower")]

    def choose(self, *shapes: tuple[str, str]) -> Node:
        fitting = [n for n in self.pool if n.shape in shapes]
        # Later entries are larger; they are chosen as often as all others, so that expressions nest.
        late = fitting[-3:]
        return (late if self.random.random() < 0.5 else fitting)[self.random.integers(len(late))]

    def grow(self) -> None:
        pick = self.random.integers(6)
        node = self.choose(*{n.shape for n in self.pool})
        rows, columns = node.shape
        if pick == 0:
            self.pool.append(multiply(node, self.choose((rows, "1"), ("1", "1")) if rows == "C" else node))
        elif pick == 1:
            self.pool.append(linear(((1, node), (int(self.random.integers(-2, 3)), self.choose(node.shape)))))
        elif pick == 2 and node.shape == ("C", "C"):
            self.pool.append(inverse(multiply(mask("strict"), node)))
        elif pick == 3:
            self.pool.append(transpose(node))
        else:
            partners = [n for n in self.pool if n.shape[0] == columns and "1" not in (*n.shape, rows, columns)]
            if partners:
                self.pool.append(matmul(node, partners[self.random.integers(len(partners))]))

    def form(self) -> Form:
        """Every input and the last expressions are in it."""
        for _ in range(STEPS):
            self.grow()
        named = [("X", self.pool[-3]), ("Y", self.pool[-1])]
        q, k, v = (self.inputs[name] for name in "QKV")
        state = self.inputs["S"]
        output = self._sum(("C", "V"), matmul(q, state), v)
        after = self._sum(("K", "V"), multiply(self.inputs["scale"], state), matmul(transpose(k), v))
        stages = [*((n, x) for n, x in named if x.op not in ("input", "mask")), ("O", output), ("S1", after)]
        return Form(output, after, tuple(stages))

    def _sum(self, shape: tuple[str, str], *terms: Node) -> Node:
        grown = [n for n in self.pool[-8:] if n.shape == shape]
        return linear([(1, t) for t in (*terms, *grown)])


def refused(derivation: Derivation) -> bool:
    """Whether no plan can be made; the reason is one that a user can understand."""
    try:
        build_plan(derivation)
    except QlagenError as fault:
        return fault.code == "E-PROGRAM" and "no tile operations for stage" in fault.message
    return False


def test_random_forms() -> None:
    computed = 0
    for seed in range(150):
        derivation = as_derivation(small_spec("gated_delta_rule"), Grower(seed).form())
        if not refused(derivation):
            check_one_chunk(derivation, seed)
            computed += 1
    assert computed > 120


def test_the_plan_depends_on_the_form_alone() -> None:
    spec = small_spec("gated_delta_rule")
    for seed in range(10):
        first, second = (as_derivation(spec, Grower(seed).form()) for _ in range(2))
        assert refused(first) == refused(second)
        assert refused(first) or build_plan(first) == build_plan(second)
