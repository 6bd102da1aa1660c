"""The rows of the benchmark: heads, sequences, gates and direction, from `grid.toml`, in the order of their worth."""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from qlagen.errors import QlagenError, did_you_mean

KEY_SIZE = VALUE_SIZE = 128
"""K and V: every row has heads of this size."""

DIRECTIONS = ("forward", "backward")
_STRIDE = 0.381966
"""The golden ratio's smaller part: steps of this share of a list visit it evenly."""


@dataclass(frozen=True)
class Traits:
    """What an operator's token does, as far as inputs and reference depend on it."""

    operator: str
    gate: bool
    """S is decayed by exp(g) first."""
    correction: bool
    """beta (v - S^T k) is written for k instead of v."""


@dataclass(frozen=True)
class Case:
    """One row's problem, the same for every implementation."""

    direction: str
    key_heads: int
    value_heads: int
    label: str
    """The sequences as the tables name them."""
    lengths: tuple[int, ...]
    """Tokens of each sequence."""
    gates: str
    operator: str = ""
    """Its name in the grid; empty for the first one."""

    @property
    def heads(self) -> str:
        return f"{self.key_heads}:{self.value_heads}"

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def name(self) -> str:
        prefix = f"{self.operator} " if self.operator else ""
        return f"{prefix}{self.direction} {self.heads} {self.label} ({self.gates})"

    @property
    def traits(self) -> Traits:
        return operator_traits(self.operator)

    def as_json(self) -> dict[str, Any]:
        """The fields that a record has in common with its case."""
        return {
            **({"operator": self.operator} if self.operator else {}),
            "direction": self.direction,
            "heads": self.heads,
            "sequences": self.label,
            "gates": self.gates,
        }


def make_case(direction: str, heads: str, sequences: str, gates: str, operator: str = "") -> Case:
    """A case from the labels of a record or of the command line. Raises E-BENCH-CASE for a label with no meaning."""
    if direction not in DIRECTIONS:
        raise _unknown("direction", direction, DIRECTIONS)
    kinds = gate_kinds(operator)
    if gates not in kinds:
        raise _unknown("gates", gates, kinds)
    key_heads, value_heads = parse_heads(heads)
    lengths = parse_sequences(sequences)
    return Case(direction, key_heads, value_heads, sequences, lengths, gates, _other_name(operator))


def case_of(fields: Mapping[str, str]) -> Case:
    """The case of a record, or of what `Case.as_json` gave."""
    direction, heads, sequences, gates = (fields[name] for name in ("direction", "heads", "sequences", "gates"))
    return make_case(direction, heads, sequences, gates, fields.get("operator", ""))


def forward_case(label: str) -> Case:
    """``16:64/4x8192``, with a kind of gates after another slash where it is not the usual one. Raises E-BENCH-CASE."""
    heads, slash, rest = label.partition("/")
    sequences, _, gates = rest.partition("/")
    if not slash:
        notes = ["rows are HEADS/SEQUENCES, as in 16:64/4x8192"]
        raise QlagenError("E-BENCH-CASE", f"{label!r} is no row of the benchmark", notes=notes)
    return make_case("forward", heads, sequences, gates or gate_kinds()[0])


def parse_heads(label: str) -> tuple[int, int]:
    """``16:64`` -> key heads 16, value heads 64."""
    match = re.fullmatch(r"([1-9]\d*):([1-9]\d*)", label)
    if match is None or int(match[2]) % int(match[1]):
        message = f"{label!r} is not a pair of head counts"
        notes = ["heads are KEY:VALUE, and the value heads a multiple of the key heads, as in 16:64"]
        raise QlagenError("E-BENCH-CASE", message, notes=notes)
    return int(match[1]), int(match[2])


def parse_sequences(label: str) -> tuple[int, ...]:
    """``4x8192`` or ``28672+4096`` or a name from the grid -> the lengths in tokens."""
    named = _grid()["sequences"]
    if label in named:
        return tuple(named[label])
    if match := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", label):
        return (int(match[2]),) * int(match[1])
    if re.fullmatch(r"[1-9]\d*(\+[1-9]\d*)*", label):
        return tuple(int(part) for part in label.split("+"))
    message = f"{label!r} does not say which sequences to run"
    notes = ["write COUNTxTOKENS (4x8192), a sum of lengths (28672+4096) or one of: " + ", ".join(named)]
    raise QlagenError("E-BENCH-CASE", message, notes=notes, hints=did_you_mean(label, named))


def gate_kinds(operator: str = "") -> tuple[str, ...]:
    """What the gates of an operator's rows may look like, the usual ones first."""
    gates = _grid()["gates"]
    return tuple(gates["order"]) if operator_traits(operator).gate else (gates["ungated"],)


def gate_order(label: str) -> int:
    """Where a kind of gates stands in tables."""
    return (*gate_kinds(), label).index(label)


def operators() -> tuple[str, ...]:
    """Names of the operators that have rows; the first is the main one."""
    return tuple(_grid()["operators"])


def operator_traits(operator: str) -> Traits:
    """Of an operator by name, of the first one for an empty name. Raises E-BENCH-CASE for an unknown one."""
    known = _grid()["operators"]
    name = operator or operators()[0]
    if name not in known:
        raise _unknown("operator with rows", name, operators())
    return Traits(name, **known[name])


def _other_name(operator: str) -> str:
    """How a case names an operator: rows of the main one, which are older than the others, do not."""
    return "" if operator == operators()[0] else operator


def plan(
    directions: Sequence[str] = DIRECTIONS,
    heads: Sequence[str] = (),
    sequences: Sequence[str] = (),
    gates: Sequence[str] = (),
    wanted: Sequence[str] = (),
) -> list[Case]:
    """The cases to run, the most informative first; an empty filter takes the grid's own list.

    With several directions their orders are merged row by row, so that a short budget still sees each. `wanted` names
    operators; the main one's rows come first.
    """
    for name in wanted:
        operator_traits(name)
    chosen = wanted or operators()
    main = operators()[0] in chosen
    queues = [_ordered(direction, heads, sequences, gates or gate_kinds()) for direction in directions if main]
    longest = max((len(queue) for queue in queues), default=0)
    cases = [queue[i] for i in range(longest) for queue in queues if i < len(queue)]
    if "forward" not in directions:
        return cases
    return cases + [
        case for others in _grid()["others"] for case in _other_cases(others, chosen, heads, sequences, gates)
    ]


def _other_cases(
    others: Mapping[str, Any],
    chosen: Sequence[str],
    heads: Sequence[str],
    sequences: Sequence[str],
    gates: Sequence[str],
) -> Iterable[Case]:
    """The rows of another operator: those of the filters that the grid has for it, and with its usual gates."""
    usual = gate_kinds(others["operator"])[0]
    if others["operator"] not in chosen or (gates and usual not in gates):
        return
    for pair in _spread(others["heads"], others["sequences"]):
        if (not heads or pair[0] in heads) and (not sequences or pair[1] in sequences):
            yield make_case("forward", *pair, usual, others["operator"])


def head_order(label: str) -> tuple[int, int]:
    """Where a head count stands in tables: by value heads, then by key heads."""
    key, value = parse_heads(label)
    return value, key


def sequence_order(direction: str, label: str) -> tuple[int, int, str]:
    """Where sequences stand in tables: as in the grid, others after them by their tokens. Another operator's name in
    place of the direction means its forward rows."""
    known = _grid()[direction if direction in DIRECTIONS else DIRECTIONS[0]]["sequences"]
    return (known.index(label), 0, "") if label in known else (len(known), -sum(parse_sequences(label)), label)


def _ordered(direction: str, heads: Sequence[str], sequences: Sequence[str], gates: Sequence[str]) -> list[Case]:
    if direction not in DIRECTIONS:
        raise _unknown("direction", direction, DIRECTIONS)
    grid = _grid()[direction]
    wanted_heads, wanted_sequences = heads or grid["heads"], sequences or grid["sequences"]
    pairs = [(h, s) for h, s in grid["first"] if h in wanted_heads and s in wanted_sequences]
    first = len(pairs)
    pairs += [pair for pair in _spread(wanted_heads, wanted_sequences) if pair not in pairs]
    usual, *others = gates
    order = [(pair, usual) for pair in pairs[:first]]
    order += [(pair, gate) for gate in others for pair in pairs[: first // 2]]
    order += [(pair, gate) for gate in (usual, *others) for pair in pairs if (pair, gate) not in order]
    return [make_case(direction, *pair, gate) for pair, gate in dict.fromkeys(order)]


def _spread(heads: Sequence[str], sequences: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Every pair once; each pass takes every head count once, and goes on in the sequences where the last one ended."""
    count = len(sequences)
    step, turn_step = _coprime(round(count * _STRIDE), count), _coprime(len(heads), count)
    for turn in range(count):
        for index, head in enumerate(heads):
            yield head, sequences[(turn * turn_step + index) * step % count]


def _coprime(least: int, count: int) -> int:
    """The first number from `least` on whose multiples visit all of `count` places."""
    return next(number for number in itertools.count(max(1, least)) if math.gcd(number, count) == 1)


def _unknown(what: str, got: str, allowed: Sequence[str]) -> QlagenError:
    notes = [f"allowed: {', '.join(allowed)}"]
    return QlagenError("E-BENCH-CASE", f"{got!r} is no {what}", notes=notes, hints=did_you_mean(got, allowed))


@cache
def _grid() -> dict[str, Any]:
    return tomllib.loads(resources.files("qlagen.bench").joinpath("grid.toml").read_text(encoding="utf-8"))
