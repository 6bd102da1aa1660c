"""Counts again, from a kernel file's text alone, the arrivals on every barrier."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from qlagen.errors import QlagenError
from qlagen.schedule.model import Schedule

_LANES = 32
_OF_BEFORE = ("step > 0", "step > T.max(done, 0)")
_OF_LAST = "iterations > 0"
"""Tests before what is done for the iteration before, in the loop and behind it."""


def check_text(text: str, schedule: Schedule) -> None:
    """Raises E-ARRIVALS when the text allocates a barrier with another count than the schedule's, or arrives on one
    more or less often in an iteration than its count. Text that is no kernel file raises E-EMIT."""
    found = read_barriers(text)
    scheduled = {barrier.name: barrier.count for barrier in schedule.barriers}
    for name, count in scheduled.items():
        if name not in found:
            raise QlagenError("E-ARRIVALS", f"the text has no barrier {name}")
        if found[name].count != count:
            message = f"barrier {name} is made for {found[name].count} arrivals, its schedule says {count}"
            raise QlagenError("E-ARRIVALS", message)
    for name, barrier in found.items():
        if barrier.left_over != barrier.late:
            message = f"barrier {name}: {barrier.late} arrivals come late, {barrier.left_over} behind the loop"
            raise QlagenError("E-ARRIVALS", message)
        if barrier.count != barrier.arrivals:
            raise QlagenError(
                "E-ARRIVALS",
                f"barrier {name} is made for {barrier.count} arrivals, the text makes {barrier.arrivals}",
                notes=["too high a count deadlocks, too low a count races"],
            )


@dataclass
class TextBarrier:
    """`late`: the arrivals that are made for the iteration before; `left_over`: those of the last iteration."""

    count: int
    arrivals: int = 0
    late: int = 0
    left_over: int = 0


def read_barriers(text: str) -> dict[str, TextBarrier]:
    """The barriers that a kernel file allocates, with the arrivals per iteration that its branches make."""
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise QlagenError("E-EMIT", f"the kernel's text is not Python: line {error.lineno}: {error.msg}") from error
    reader = _Reader()
    reader.read_constants(module)
    for node in ast.walk(module):
        if isinstance(node, ast.With):
            reader.read_allocations(node)
            reader.visit(node.body, 0, reader.constants.get("THREADS", 0), _LANES)
            return reader.barriers
    raise QlagenError("E-EMIT", "the kernel's text has no `with T.Kernel(...)`")


class _Reader:
    """Walks the branches `tx < END` and keeps the range of threads that each statement is for."""

    def __init__(self) -> None:
        self.constants: dict[str, int] = {}
        self.barriers: dict[str, TextBarrier] = {}

    def read_constants(self, module: ast.Module) -> None:
        for node in module.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = self._value(node.value)
                if value is not None:
                    self.constants[node.targets[0].id] = value

    def _value(self, node: ast.expr) -> int | None:
        """An integer made of constants, sums and products; None for anything else."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            return self.constants.get(node.id)
        if isinstance(node, ast.BinOp):
            left, right = self._value(node.left), self._value(node.right)
            if left is not None and right is not None:
                match node.op:
                    case ast.Add():
                        return left + right
                    case ast.Mult():
                        return left * right
        return None

    def read_allocations(self, kernel: ast.With) -> None:
        for node in kernel.body:
            if not (isinstance(node, ast.Assign) and _callee(node.value) == "alloc_barrier"):
                continue
            target, call = node.targets[0], node.value
            assert isinstance(target, ast.Name)
            assert isinstance(call, ast.Call)
            lists = [n for n in ast.walk(call) if isinstance(n, ast.List)]
            count = self._value(lists[0].elts[0]) if lists else None
            if count is None:
                raise QlagenError("E-EMIT", f"barrier {target.id}: no count can be read from the text")
            self.barriers[target.id] = TextBarrier(count)

    def visit(self, body: list[ast.stmt], first: int, end: int, lanes: int) -> None:
        loops: list[dict[str, int]] = []
        for node in body:
            if isinstance(node, ast.If) and ast.unparse(node.test) in (*_OF_BEFORE, _OF_LAST):
                for name in _arrivals_within(node):
                    self._count_late(self.barriers[name], ast.unparse(node.test), (end - first) // _LANES)
            elif isinstance(node, ast.If):
                self._branch(node, first, end, lanes)
            elif isinstance(node, ast.While):
                self.visit(node.body, first, end, lanes)
            elif isinstance(node, ast.For):
                made = self._made_by(node, first, end, lanes)
                if ast.unparse(node.target) == "step":
                    made = self._unless_counted(made, loops)
                    loops.append(made)
                for name, arrivals in made.items():
                    self.barriers[name].arrivals += arrivals
            else:
                for name in _arrivals(node):
                    self.barriers[name].arrivals += (end - first) * lanes // _LANES

    def _made_by(self, loop: ast.For, first: int, end: int, lanes: int) -> dict[str, int]:
        """The arrivals of a loop's body, which count here no more than anything else does."""
        before = {name: barrier.arrivals for name, barrier in self.barriers.items()}
        self.visit(loop.body, first, end, lanes)
        made = {name: barrier.arrivals - before[name] for name, barrier in self.barriers.items()}
        for name, barrier in self.barriers.items():
            barrier.arrivals = before[name]
        return {name: arrivals for name, arrivals in made.items() if arrivals}

    def _unless_counted(self, made: dict[str, int], loops: list[dict[str, int]]) -> dict[str, int]:
        """A role's second loop does further iterations: it arrives as the first one does, or not at all."""
        if not loops:
            return made
        if made and made != loops[0]:
            names = ", ".join(sorted(set(made) ^ set(loops[0])) or sorted(made))
            raise QlagenError("E-ARRIVALS", f"two loops of one role arrive differently on {names}")
        return {}

    def _count_late(self, barrier: TextBarrier, condition: str, arrivals: int) -> None:
        """One elected arrival per warp, for the iteration before, or for the last one behind the loop."""
        if condition in _OF_BEFORE:
            barrier.late += arrivals
            barrier.arrivals += arrivals
        else:
            barrier.left_over += arrivals

    def _branch(self, node: ast.If, first: int, end: int, lanes: int) -> None:
        bound = self._thread_bound(node.test)
        if bound is not None:
            self.visit(node.body, first, bound, lanes)
            self.visit(node.orelse, bound, end, lanes)
        else:
            elected = _callee(node.test) == "shuffle_elect"
            self.visit(node.body, first, end, 1 if elected else lanes)
            self.visit(node.orelse, first, end, lanes)

    def _thread_bound(self, test: ast.expr) -> int | None:
        """END of a test ``tx < END``."""
        if isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "tx":
            return self._value(test.comparators[0]) if isinstance(test.ops[0], ast.Lt) else None
        return None


def _callee(node: ast.expr) -> str | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr
    return None


def _arrivals_within(node: ast.If) -> Iterator[str]:
    """Names of the barriers that the statements of a branch arrive on."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Expr):
            yield from _arrivals(inner)


def _arrivals(node: ast.stmt) -> Iterator[str]:
    """Names of the barriers that a statement arrives on."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and _callee(call) == "barrier_arrive" and isinstance(call.args[0], ast.Subscript):
            barrier = call.args[0].value
            if isinstance(barrier, ast.Name):
                yield barrier.id
