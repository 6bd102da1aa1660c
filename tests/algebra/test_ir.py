"""Normal form: equal expressions are one object, values are those of the operations asked for, structure is true."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from qlagen.algebra import ir
from qlagen.algebra.evaluate import evaluate
from qlagen.algebra.fields import Array, Float64
from qlagen.algebra.ir import Node
from qlagen.algebra.text import show
from qlagen.algebra.walk import compute_nodes, substitute, topological

Q = ir.input_node("Q", ("C", "K"))
K = ir.input_node("K", ("C", "K"))
V = ir.input_node("V", ("C", "V"))
S = ir.input_node("S", ("K", "V"))
X = ir.input_node("X", ("C", "C"))
BETA = ir.input_node("beta", ("C", "1"))
G = ir.input_node("G", ("C", "1"))
SCALE = ir.input_node("scale", ("1", "1"))
LOWER, STRICT = ir.mask("lower"), ir.mask("strict")
GRAM = ir.matmul(K, ir.transpose(K))
SIZES = {"C": 5, "K": 3, "V": 4, "1": 1}


def values(seed: int = 0) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    env = {n.value: generator.normal(size=[SIZES[d] for d in n.shape]) for n in (Q, K, V, S, X, BETA, SCALE)}
    return env | {"G": np.cumsum(-np.abs(generator.normal(size=(5, 1))), axis=0)}


def value(node: Node, seed: int = 0) -> Array:
    return evaluate((node,), values(seed), SIZES["C"], Float64(), sizes=SIZES)[0]


class TestSharing:
    def test_products_and_sums_commute_and_associate(self) -> None:
        assert ir.multiply(BETA, ir.multiply(V, SCALE)) is ir.multiply(ir.multiply(SCALE, BETA), V)
        assert ir.add(Q, ir.subtract(K, Q)) is K
        assert ir.add(ir.add(Q, K), K) is ir.linear(((2, K), (1, Q)))

    def test_transposes_cancel_and_go_to_leaves(self) -> None:
        assert ir.transpose(ir.transpose(GRAM)) is GRAM
        assert ir.transpose(GRAM) is GRAM  # K K^T is symmetric
        turned = ir.transpose(ir.matmul(ir.multiply(BETA, Q), S))
        assert turned is ir.matmul(ir.transpose(S), ir.multiply(ir.transpose(BETA), ir.transpose(Q)))
        assert all(n.args[0].op in ("input", "mask") for n in topological((turned,)) if n.op == "transpose")

    def test_integers_leave_products(self) -> None:
        minus = ir.negate(V)
        assert ir.matmul(X, minus) is ir.negate(ir.matmul(X, V))
        assert ir.multiply(BETA, ir.linear(((3, V),))) is ir.linear(((3, ir.multiply(BETA, V)),))
        assert ir.row_sum(minus) is ir.negate(ir.row_sum(V))

    def test_implied_masks_go(self) -> None:
        decay = ir.decay(G)
        assert ir.multiply(LOWER, decay, X) is ir.multiply(decay, X)
        assert ir.multiply(LOWER, STRICT, X) is ir.multiply(STRICT, X)
        assert ir.multiply(STRICT, STRICT, X) is ir.multiply(STRICT, X)
        assert ir.multiply(LOWER, ir.inverse(ir.multiply(STRICT, X))) is ir.inverse(ir.multiply(STRICT, X))
        assert STRICT in ir.multiply(STRICT, decay, X).args  # a decay has a diagonal

    def test_zero_absorbs(self) -> None:
        zero = ir.subtract(V, V)
        assert zero is ir.zero(("C", "V"))
        assert ir.matmul(X, zero) is zero
        assert ir.multiply(BETA, zero) is zero
        assert ir.add(V, zero) is V

    def test_form_does_not_depend_on_history(self) -> None:
        """Keys order operands, so a fresh process that builds operands in another order shows the same text."""
        build = "; ".join(
            (
                "from qlagen.algebra import ir; from qlagen.algebra.text import show",
                "names = ORDER",
                "nodes = {n: ir.input_node(n, ('C', 'V')) for n in names}",
                "parts = [ir.matmul(ir.input_node('X', ('C', 'C')), nodes[n]) for n in names]",
                "print(show(ir.add(*parts, ir.multiply(*nodes.values()))))",
            )
        )
        shown = {
            subprocess.run(
                [sys.executable, "-c", build.replace("ORDER", repr(order))], capture_output=True, text=True, check=True
            ).stdout
            for order in (["P", "Q", "R"], ["R", "P", "Q"])
        }
        assert shown == {"P * Q * R + X @ P + X @ Q + X @ R\n"}

    def test_long_keys_stay_short_and_distinct(self) -> None:
        left, right = X, X
        for _ in range(30):
            left, right = ir.matmul(left, left), ir.add(ir.matmul(right, right), right)
        assert left.key != right.key
        assert max(len(n.key) for n in topological((left, right))) <= 160


class TestValues:
    @pytest.mark.parametrize("seed", range(60))
    def test_random_expressions(self, seed: int) -> None:
        """An expression put into normal form has the value of the operations as they were asked for."""
        drawn = _draw(np.random.default_rng(seed), depth=5, shape=("C", "C"), env=values(seed))
        np.testing.assert_allclose(value(drawn.node, seed), drawn.value, rtol=1e-9, atol=1e-9)

    def test_broadcasting_sum_keeps_its_shape(self) -> None:
        lifted = ir.subtract(ir.add(BETA, V), V)
        assert lifted.shape == ("C", "V")
        np.testing.assert_allclose(value(lifted), np.broadcast_to(values()["beta"], (5, 4)))

    def test_outer_product(self) -> None:
        outer = ir.matmul(BETA, ir.transpose(G))
        assert outer.op == "multiply"
        np.testing.assert_allclose(value(outer), values()["beta"] @ values()["G"].T)

    def test_gate_atoms(self) -> None:
        gate = values()["G"]
        np.testing.assert_allclose(value(ir.from_start(G)), np.exp(gate))
        np.testing.assert_allclose(value(ir.to_end(G)), np.exp(gate[-1] - gate))
        np.testing.assert_allclose(value(ir.total(G)), np.exp(gate[-1:]))
        np.testing.assert_allclose(value(ir.decay(G)), np.tril(np.exp(np.minimum(gate - gate.T, 0))))

    def test_inverse(self) -> None:
        strict = ir.multiply(STRICT, X)
        expected = np.linalg.inv(np.eye(5) + np.tril(values()["X"], -1))
        np.testing.assert_allclose(value(ir.inverse(strict)), expected, atol=1e-14)


class TestStructure:
    @pytest.mark.parametrize("seed", range(60))
    def test_claims_are_true(self, seed: int) -> None:
        drawn = _draw(np.random.default_rng(1000 + seed), depth=5, shape=("C", "C"), env=values(seed))
        for node in topological((drawn.node,)):
            if node.shape != ("C", "C"):
                continue
            have = value(node, seed)
            assert not ir.is_lower(node) or not np.triu(have, 1).any()
            assert not ir.is_strictly_lower(node) or not np.triu(have).any()
            assert not ir.is_unit_lower(node) or np.array_equal(np.diag(have), np.ones(5))

    def test_known_structures(self) -> None:
        strict = ir.multiply(STRICT, BETA, GRAM)
        assert ir.is_strictly_lower(strict)
        assert ir.is_strictly_lower(ir.matmul(strict, ir.decay(G)))
        assert ir.is_lower(ir.add(ir.decay(G), strict))
        assert not ir.is_strictly_lower(ir.add(ir.decay(G), strict))
        assert ir.is_unit_lower(ir.inverse(strict))
        assert not ir.is_unit_lower(ir.multiply(BETA, ir.inverse(strict)))
        assert not ir.is_lower(GRAM)
        assert not ir.is_lower(ir.transpose(ir.decay(G)))
        assert [ir.kind(n) for n in (SCALE, BETA, ir.transpose(BETA), V)] == ["scalar", "column", "row", "matrix"]
        assert ir.depends_on(strict) == {"beta", "K"}

    def test_misuse_raises(self) -> None:
        for wrong in (
            lambda: ir.inverse(X),
            lambda: ir.matmul(Q, V),
            lambda: ir.multiply(Q, V),
            lambda: ir.add(V, S),
            lambda: ir.decay(Q),
        ):
            with pytest.raises(ValueError, match=r"inverse|multiply|broadcast|decay"):
                wrong()


class TestWalks:
    def test_operands_come_first(self) -> None:
        root = ir.matmul(ir.multiply(BETA, GRAM), V)
        order = topological((root,))
        assert order[-1] is root
        assert len(set(order)) == len(order)
        assert all(order.index(a) < order.index(n) for n in order for a in n.args)

    def test_substitute_replaces_everywhere(self) -> None:
        before = ir.add(ir.matmul(GRAM, V), ir.matmul(ir.multiply(STRICT, GRAM), V))
        (after,) = substitute((before,), {GRAM: X})
        assert after is ir.add(ir.matmul(X, V), ir.matmul(ir.multiply(STRICT, X), V))

    def test_an_expression_and_its_transpose_are_computed_once(self) -> None:
        product = ir.matmul(Q, ir.transpose(K))
        both = ir.add(ir.matmul(product, V), ir.matmul(ir.transpose(product), V))
        computed = [n for n in compute_nodes((both,)) if n.op == "matmul" and n.shape == ("C", "C")]
        assert len(computed) == 1


@dataclass
class Drawn:
    node: Node
    value: Array


def _draw(generator: np.random.Generator, depth: int, shape: tuple[str, str], env: dict[str, Array]) -> Drawn:
    """A random expression and its value, computed beside it by plain NumPy."""
    if depth == 0 or generator.random() < 0.1:
        return _leaf(generator, shape, env)
    choice = generator.integers(7)
    if choice == 0:
        a = _draw(generator, depth - 1, (shape[1], shape[0]), env)
        return Drawn(ir.transpose(a.node), a.value.T)
    if choice == 1:
        inner = str(generator.choice(["C", "K", "V", "1"]))
        a, b = _draw(generator, depth - 1, (shape[0], inner), env), _draw(generator, depth - 1, (inner, shape[1]), env)
        return Drawn(ir.matmul(a.node, b.node), a.value @ b.value)
    if choice == 2 and shape == ("C", "C"):
        a = _draw(generator, depth - 1, shape, env)
        strict = bool(generator.integers(2))
        return Drawn(ir.multiply(STRICT if strict else LOWER, a.node), np.tril(a.value, -1 if strict else 0))
    if choice == 3 and shape == ("C", "C"):
        return Drawn(ir.inverse(ir.multiply(STRICT, X)), np.linalg.inv(np.eye(5) + np.tril(env["X"], -1)))
    if choice in (3, 4):
        stretch = tuple(str(generator.choice([d, "1"])) for d in shape)
        a, b = _draw(generator, depth - 1, shape, env), _draw(generator, depth - 1, (stretch[0], stretch[1]), env)
        return Drawn(ir.multiply(a.node, b.node), a.value * b.value)
    c, d = (int(x) for x in generator.integers(-2, 3, 2))
    stretch = tuple(str(generator.choice([d_, "1"])) for d_ in shape)
    a, b = _draw(generator, depth - 1, shape, env), _draw(generator, depth - 1, (stretch[0], stretch[1]), env)
    return Drawn(ir.linear(((c, a.node), (d, b.node))), c * a.value + d * b.value)


def _leaf(generator: np.random.Generator, shape: tuple[str, str], env: dict[str, Array]) -> Drawn:
    fitting = [n for n in (Q, K, V, S, X, BETA, SCALE) if shape in (n.shape, n.shape[::-1])]
    if not fitting:
        full = np.ones([SIZES[d] for d in shape])
        return Drawn(ir.ones(shape), full)
    node = fitting[generator.integers(len(fitting))]
    have = env[node.value]
    return Drawn(node, have) if node.shape == shape else Drawn(ir.transpose(node), have.T)


def test_show_writes_the_language_of_stages() -> None:
    strict = ir.multiply(STRICT, BETA, GRAM, ir.decay(G))
    inverse = ir.inverse(strict)
    assert show(inverse) == "inv_unit_lower(stril(beta * (K @ K^T) * decay(G)))"
    assert show(ir.matmul(inverse, ir.subtract(V, ir.matmul(K, S))), {inverse: "A"}) == "A @ (V - K @ S)"
    assert show(ir.transpose(inverse), {inverse: "A"}) == "A^T"
    assert show(ir.linear(((-2, V), (1, ir.matmul(K, S))))) == "K @ S - 2 * V"
    assert show(ir.multiply(LOWER, ir.transpose(ir.to_end(G)))) == "tril(to_end(G)^T)"


def test_an_expression_that_was_pickled_is_the_same_object() -> None:
    """So that other processes look symbols up in it as this one does."""
    expression = ir.multiply(ir.decay(G), GRAM)
    assert pickle.loads(pickle.dumps(expression)) is expression
