"""The oracle: a float64 token recurrence, evaluated from the text of a spec's ``[recurrence]`` and ``[step]`` tables.

It imports NumPy only. It has its own small parser and evaluator, so that a fault in the compiler's parser, algebra
or kernels cannot be shared by what judges them.

Notation: one token's vectors are columns (``k`` is K x 1), numbers are 1 x 1, the carried state is K x V. ``+``, ``-``
and ``*`` work entry by entry and stretch sides of length one; ``@`` is the matrix product, ``^T`` the transpose.
``*`` and ``@`` bind equally tightly and group from the left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Tree = tuple[Any, ...]

_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*'?)|(?P<integer>\d+)|(?P<symbol>\^T(?![\w'])|[-+*@()]))")
_BLOCK_ELEMENTS = 1 << 17
"""State entries handled together: 1 MiB in float64, so that a block of heads stays in a core's cache."""


@dataclass(frozen=True)
class Argument:
    """One input of the operator.

    `name` is the argument's name, `symbol` its name in the recurrence text. `size` is the length of its vector per
    token and head, None for a number. `heads` says whose heads it has; ``none`` is one number for the whole call.
    With `log_gate` the symbol stands for ``exp`` of the argument. `steps` is how many there are for each token, one for
    each of its steps; None for one.
    """

    name: str
    symbol: str
    size: int | None
    heads: Literal["key", "value", "none"]
    log_gate: bool = False
    steps: int | None = None


@dataclass(frozen=True)
class Recurrence:
    """What one token does. `lines` are (name, text) in the order of evaluation; a line may use those before it.

    `next_state` and `output` name the lines that give the next state (K x V) and the token's output (V x 1). A token of
    several steps has lines for one of them, `step`, over the state before the step and all arguments, among which
    `next_state` is: they run for each step in turn as soon as the line `first_state`, the state before the first step,
    is known; lines after it may use the `next_state` that the last step leaves.
    """

    lines: tuple[tuple[str, str], ...]
    state: str
    next_state: str
    output: str
    arguments: tuple[Argument, ...]
    key_size: int
    value_size: int
    step: tuple[tuple[str, str], ...] = ()
    first_state: str = ""


@dataclass(frozen=True)
class _Shape:
    """Sizes of one call; `starts` and `lengths` are the sequences' rows in the flattened [B * T] token axis."""

    batch: int
    tokens: int
    key_heads: int
    value_heads: int
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


def run(
    recurrence: Recurrence,
    arrays: Mapping[str, npt.ArrayLike],
    cu_seqlens: npt.ArrayLike | None = None,
    initial_state: npt.ArrayLike | None = None,
) -> tuple[Array, Array]:
    """The output and the final state of every sequence, in float64.

    `arrays` maps argument names to values: [B, T, Hk, size] or [B, T, Hv, size] for vectors, [B, T, H] for numbers,
    with an axis after H for what is given for each step, plain numbers for arguments without heads. Value head h reads
    key head ``h // (Hv // Hk)``. Without `cu_seqlens` the B rows are independent sequences; with it ([N + 1] offsets)
    B is 1. `initial_state` is [N, Hv, K, V] or None for zero. A log gate of minus infinity forgets the state.

    Returns o [B, T, Hv, V], zero in rows that belong to no sequence, and final_state [N, Hv, K, V].
    Raises ValueError for text that does not parse and for shapes that do not fit.
    """
    trees, step = _parse_lines(recurrence.lines), _parse_lines(recurrence.step)
    values, shape = _collect(recurrence, arrays, cu_seqlens)
    count, heads = len(shape.lengths), shape.value_heads
    size = (count, heads, recurrence.key_size, recurrence.value_size)
    state = np.zeros(size) if initial_state is None else np.array(initial_state, dtype=np.float64)
    if state.shape != size:
        raise ValueError(f"initial_state has shape {state.shape}, needs [N, Hv, K, V] = {size}")
    output = np.zeros((shape.batch * shape.tokens, heads, recurrence.value_size))
    block = max(1, _BLOCK_ELEMENTS // max(1, count * recurrence.key_size * recurrence.value_size))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for first in range(0, heads, block):
            chosen = np.arange(first, min(first + block, heads))
            _run_heads(recurrence, (trees, step), values, shape, chosen, state, output)
    return output.reshape(shape.batch, shape.tokens, heads, recurrence.value_size), state


_Trees = tuple[tuple[str, Tree], ...]


def _parse_lines(lines: tuple[tuple[str, str], ...]) -> _Trees:
    return tuple((name, parse(text)) for name, text in lines)


def _run_heads(
    recurrence: Recurrence,
    trees: tuple[_Trees, _Trees],
    values: dict[str, Array],
    shape: _Shape,
    heads: npt.NDArray[np.int64],
    state: Array,
    output: Array,
) -> None:
    """Walk the tokens of all sequences in step for some value heads; `state` and `output` are written in place."""
    order = np.argsort(-shape.lengths, kind="stable")
    starts, lengths = shape.starts[order], shape.lengths[order]
    carried = state[np.ix_(order, heads)]
    key_heads = heads // max(1, shape.value_heads // max(1, shape.key_heads))
    for token in range(int(lengths[0]) if len(lengths) else 0):
        active = int(np.searchsorted(-lengths, -token, side="left"))
        rows = starts[:active] + token
        given: dict[str, Array] = {}
        for argument in recurrence.arguments:
            value = values[argument.name]
            if argument.heads != "none":
                value = value[np.ix_(rows, key_heads if argument.heads == "key" else heads)][..., None]
            given[argument.symbol] = value
        names = _run_token(recurrence, trees, given, carried[:active])
        carried[:active] = names[recurrence.next_state]
        output[np.ix_(rows, heads)] = names[recurrence.output][..., 0]
    state[np.ix_(order, heads)] = carried


def _run_token(
    recurrence: Recurrence, trees: tuple[_Trees, _Trees], given: dict[str, Array], state: Array
) -> dict[str, Array]:
    """Every line's value for one token; what is given for each step is [..., steps, size, 1]."""
    per_step = {argument.symbol: argument.steps for argument in recurrence.arguments if argument.steps is not None}
    names = {name: value for name, value in given.items() if name not in per_step} | {recurrence.state: state}
    for name, tree in trees[0]:
        names[name] = evaluate(tree, names)
        if name == recurrence.first_state:
            carried = names[name]
            for index in range(max(per_step.values())):
                now = {symbol: given[symbol][..., index, :, :] for symbol in per_step}
                inner = {**given, **now, recurrence.state: carried}
                for line, step in trees[1]:
                    inner[line] = evaluate(step, inner)
                carried = inner[recurrence.next_state]
            names[recurrence.next_state] = carried
    return names


def _collect(
    recurrence: Recurrence, arrays: Mapping[str, npt.ArrayLike], cu_seqlens: npt.ArrayLike | None
) -> tuple[dict[str, Array], _Shape]:
    """The arguments as float64, tokens flattened to [B * T, H, size], and the sizes of the call."""
    values: dict[str, Array] = {}
    sizes: dict[str, tuple[int, ...]] = {}
    for argument in recurrence.arguments:
        if argument.name not in arrays:
            raise ValueError(f"argument {argument.name!r} is missing; got {sorted(arrays)}")
        value = np.asarray(arrays[argument.name], dtype=np.float64)
        own = tuple(size for size in (argument.steps, argument.size) if size is not None)
        wanted = 0 if argument.heads == "none" else 3 + len(own)
        if value.ndim != wanted or value.shape[3:] != own:
            raise ValueError(f"argument {argument.name!r} has shape {value.shape}, needs {wanted} axes")
        values[argument.name] = value = np.exp(value) if argument.log_gate else value
        if wanted:
            for axis, name in enumerate(("batch", "tokens", argument.heads)):
                if sizes.setdefault(name, value.shape[axis : axis + 1]) != value.shape[axis : axis + 1]:
                    raise ValueError(f"argument {argument.name!r} has shape {value.shape}; {name} differs from others")
    batch, tokens = sizes["batch"][0], sizes["tokens"][0]
    value_heads = sizes.get("value", sizes.get("key", (0,)))[0]
    key_heads = sizes.get("key", (value_heads,))[0]
    if value_heads % max(1, key_heads):
        raise ValueError(f"{value_heads} value heads are not a multiple of {key_heads} key heads")
    for argument in recurrence.arguments:
        if argument.heads != "none":
            heads = sizes[argument.heads][0]
            steps = () if argument.steps is None else (argument.steps,)
            values[argument.name] = values[argument.name].reshape(batch * tokens, heads, *steps, argument.size or 1)
    offsets = _offsets(batch, tokens, cu_seqlens)
    return values, _Shape(batch, tokens, key_heads, value_heads, offsets[:-1], np.diff(offsets))


def _offsets(batch: int, tokens: int, cu_seqlens: npt.ArrayLike | None) -> npt.NDArray[np.int64]:
    """First row of every sequence in the flattened token axis, and the end of the last one."""
    if cu_seqlens is None:
        return np.arange(batch + 1, dtype=np.int64) * tokens
    offsets = np.asarray(cu_seqlens, dtype=np.int64)
    if batch != 1:
        raise ValueError(f"cu_seqlens needs a batch of 1, got {batch}")
    if offsets.ndim != 1 or len(offsets) < 1 or offsets[0] != 0 or np.any(np.diff(offsets) < 0) or offsets[-1] > tokens:
        raise ValueError(f"cu_seqlens must rise from 0 to at most {tokens}, got {offsets.tolist()}")
    return offsets


def evaluate(tree: Tree, names: Mapping[str, Array]) -> Array:
    """The value of a parsed expression; every name is an array [..., rows, columns]."""
    operator = tree[0]
    if operator == "name":
        if tree[1] not in names:
            raise ValueError(f"unknown name {tree[1]!r}; known: {sorted(names)}")
        return names[tree[1]]
    if operator == "integer":
        return np.full((1, 1), float(tree[1]))
    left = evaluate(tree[1], names)
    if operator == "negate":
        return -left
    if operator == "transpose":
        return np.swapaxes(left, -1, -2)
    right = evaluate(tree[2], names)
    if operator == "@":
        if left.shape[-1] != right.shape[-2]:
            raise ValueError(f"cannot multiply {left.shape[-2:]} by {right.shape[-2:]}")
        return left * right if left.shape[-1] == 1 else np.matmul(left, right)
    return left * right if operator == "*" else left + right if operator == "+" else left - right


def parse(text: str) -> Tree:
    """An expression as nested tuples: (operator, operands...)."""
    tokens: list[tuple[str, str]] = []
    place = 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"cannot read {text[place:].strip()!r} in {text!r}")
        tokens.append((str(match.lastgroup), match.group(str(match.lastgroup))))
        place = match.end()
    tree, rest = _sum(tokens, 0, text)
    if rest != len(tokens):
        raise ValueError(f"unexpected {tokens[rest][1]!r} in {text!r}")
    return tree


_Tokens = list[tuple[str, str]]
_Parsed = tuple[Tree, int]


def _at(tokens: _Tokens, place: int) -> str | None:
    return tokens[place][1] if place < len(tokens) else None


def _sum(tokens: _Tokens, place: int, text: str) -> _Parsed:
    tree, place = _product(tokens, place, text)
    while (operator := _at(tokens, place)) in ("+", "-"):
        right, place = _product(tokens, place + 1, text)
        tree = (operator, tree, right)
    return tree, place


def _product(tokens: _Tokens, place: int, text: str) -> _Parsed:
    tree, place = _signed(tokens, place, text)
    while (operator := _at(tokens, place)) in ("*", "@"):
        right, place = _signed(tokens, place + 1, text)
        tree = (operator, tree, right)
    return tree, place


def _signed(tokens: _Tokens, place: int, text: str) -> _Parsed:
    if _at(tokens, place) == "-":
        tree, place = _signed(tokens, place + 1, text)
        return ("negate", tree), place
    tree, place = _atom(tokens, place, text)
    while _at(tokens, place) == "^T":
        tree, place = ("transpose", tree), place + 1
    return tree, place


def _atom(tokens: _Tokens, place: int, text: str) -> _Parsed:
    if place >= len(tokens):
        raise ValueError(f"{text!r} ends too early")
    kind, word = tokens[place]
    if kind in ("name", "integer"):
        return (kind, word), place + 1
    if word == "(":
        tree, place = _sum(tokens, place + 1, text)
        if _at(tokens, place) != ")":
            raise ValueError(f"a closing parenthesis is missing in {text!r}")
        return tree, place + 1
    raise ValueError(f"unexpected {word!r} in {text!r}")
