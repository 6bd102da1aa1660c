"""Random well-formed programs: forms that no spec has yet."""

from __future__ import annotations

import random

from qlagen.program.ir import (
    Apply,
    Carry,
    Dims,
    ElementExpr,
    Elementwise,
    Gate,
    Gemm,
    Inverse,
    Load,
    Number,
    Operation,
    Program,
    Ref,
    Scan,
    Store,
    Tensor,
)

LOADS: list[tuple[str, Dims, str]] = [
    ("q", ("C", "K"), "data"),
    ("k", ("C", "K"), "data"),
    ("v", ("C", "V"), "data"),
    ("a", ("C", "C"), "data"),
    ("beta", ("C",), "float32"),
    ("g", ("C",), "float32"),
]


class _Writer:
    """Adds random operations to a program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.carried = self.random.random() < 0.6
        self.operations: list[Operation] = []
        self.dims: dict[str, Dims] = {"S": ("K", "V")} if self.carried else {}
        self.gates: set[str] = set()

    def add(self, operation: Operation, dims: Dims) -> None:
        self.operations.append(operation)
        self.dims[operation.name] = dims
        if isinstance(operation, Gate):
            self.gates.add(operation.name)

    def matrices(self, dims: Dims | None = None) -> list[str]:
        names = [name for name, found in self.dims.items() if len(found) == 2 and name not in self.gates]
        return [name for name in names if dims is None or self.dims[name] == dims]

    def start(self) -> None:
        for name, dims, dtype in self.random.sample(LOADS, self.random.randint(2, len(LOADS))):
            data = "data" if dtype == "data" else "float32"
            self.add(Load(name, Tensor(name, dims, data, "value", "token")), dims)
        if "g" in self.dims:
            source = "g"
            if self.random.random() < 0.5:
                self.add(Scan("G", "g"), ("C",))
                source = "G"
            for gate, dims in (("from_start", ("C",)), ("to_end", ("C",)), ("total", ()), ("decay", ("C", "C"))):
                if self.random.random() < 0.6:
                    self.add(Gate(gate, source, gate), dims)  # type: ignore[arg-type]
        self.add(Gate("lower", None, "lower"), ("C", "C"))

    def step(self, name: str) -> None:
        kind = self.random.random()
        if kind < 0.45:
            self._gemm(name)
        elif kind < 0.55 and self.matrices(("C", "C")):
            source = self.random.choice(self.matrices(("C", "C")))
            self.add(Gate(f"{name}_mask", None, "strict"), ("C", "C"))
            expr = Apply("mul", Ref(source), Ref(f"{name}_mask"))
            self.add(Elementwise(f"{name}_strict", expr), ("C", "C"))
            self.add(Inverse(name, f"{name}_strict"), ("C", "C"))
        else:
            self._elementwise(name)

    def _gemm(self, name: str) -> None:
        if not self.matrices():
            return
        left, right = self.random.choice(self.matrices()), self.random.choice(self.matrices())
        flip_left, flip_right = self.random.random() < 0.5, self.random.random() < 0.5
        first = self.dims[left][::-1] if flip_left else self.dims[left]
        second = self.dims[right][::-1] if flip_right else self.dims[right]
        if first[1] == second[0]:
            dims = (first[0], second[1])
            onto = self.matrices(dims)
            add = self.random.choice(onto) if onto and self.random.random() < 0.4 else None
            self.add(Gemm(name, left, right, flip_left, flip_right, add), dims)

    def _elementwise(self, name: str) -> None:
        base = self.random.choice([n for n, dims in self.dims.items() if dims != ()])
        dims = self.dims[base]
        expr: ElementExpr = Ref(base)
        for _ in range(self.random.randint(1, 3)):
            leaves: list[ElementExpr] = [Ref(n) for n in self.dims if self.dims[n] == dims]
            leaves += [Ref(n, "all") for n in self.dims if self.dims[n] == ()]
            if len(dims) == 2:
                leaves += [Ref(n, "rows") for n in self.dims if self.dims[n] == dims[:1]]
                leaves += [Ref(n, "columns") for n in self.dims if self.dims[n] == dims[1:]]
            leaf = self.random.choice([*leaves, Number(2)])
            expr = Apply(self.random.choice(("mul", "add", "sub")), expr, leaf)
        self.add(Elementwise(name, expr), dims)

    def program(self) -> Program | None:
        made = [o.name for o in self.operations if not isinstance(o, Load | Gate)]
        carry = None
        if self.carried:
            following = [name for name in made if self.dims[name] == ("K", "V")]
            if not following:
                return None
            carry = Carry("S", ("K", "V"), following[-1])
        outputs = [name for name in made if self.dims[name][0] == "C"]
        chosen = self.random.sample(outputs, min(len(outputs), self.random.randint(1, 2)))
        stores = tuple(Store(self._tensor(name), name) for name in chosen)
        if not stores and carry is None:
            return None
        return Program("random", "random", carry, tuple(self.operations), stores)

    def _tensor(self, name: str) -> Tensor:
        dims = self.dims[name]
        narrow = len(dims) == 2 and self.random.random() < 0.5
        return Tensor(f"o_{name}", dims, "data" if narrow else "float32", "value", "chunk")


def random_program(seed: int) -> Program | None:
    """A program, or None when the seed gives none with a result."""
    writer = _Writer(seed)
    writer.start()
    for number in range(writer.random.randint(2, 10)):
        writer.step(f"x{number}")
    return writer.program()
