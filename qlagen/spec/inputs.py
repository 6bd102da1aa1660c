"""The ``[inputs]`` table: one entry per tensor argument, with its shape, heads, dtype and declared ranges."""

from __future__ import annotations

import keyword
import re
from typing import Literal, cast

from qlagen.errors import QlagenError, did_you_mean
from qlagen.spec.fields import Table
from qlagen.spec.model import Input
from qlagen.spec.tokens import NAME_PATTERN

_NUMBER = r"-?[0-9]{1,9}(?:\.[0-9]{1,9})?"
_UPPER = re.compile(rf"<= ?({_NUMBER})")
_LOWER = re.compile(rf">= ?({_NUMBER})")
_BETWEEN = re.compile(rf"\[ ?({_NUMBER}) ?, ?({_NUMBER}) ?\]")
_POWER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\^-?[1-9](?:/[1-9])?")

_REQUIRED = ("shape", "heads", "dtype")
_OPTIONAL = ("role", "range", "norm", "default", "decay")


def read_input(table: Table, dims: tuple[str, ...], head_names: tuple[str, str], steps: str = "") -> Input:
    """Read ``[inputs].<name>``; `steps` is the dimension that counts a token's steps, if it has several.

    Raises E-KEY, E-MISSING, E-TYPE, E-VALUE, E-DIM and E-GATE.
    """
    table.check_keys(_REQUIRED, _OPTIONAL)
    name = _name(table)
    shape = _shape(table, dims, steps)
    vector = shape[1:] if steps in shape else shape
    heads = _heads(table, head_names)
    dtype = cast(Literal["data", "float32"], table.choice("dtype", ("data", "float32")))
    role: Literal["plain", "log_gate"] = "plain"
    if "role" in table.values:
        role = cast(Literal["plain", "log_gate"], table.choice("role", ("plain", "log_gate")))
    bounds = _range(table) if "range" in table.values else (None, None)
    if heads == "none" and shape:
        raise table.bad_value("heads", "an input without heads is one number for the whole call: its shape must be []")
    token_symbol = _decay(table, name, dtype, heads, bounds) if role == "log_gate" else name
    if role == "plain" and "decay" in table.values:
        raise table.bad_value("decay", 'only an input with role = "log_gate" names its decay')
    return Input(
        name=name,
        dims=shape,
        heads=heads,
        dtype=dtype,
        role=role,
        range=bounds,
        norm=_norm(table, vector) if "norm" in table.values else None,
        default=_default(table, dims, heads) if "default" in table.values else None,
        chunk_symbol=name.upper() if vector or role == "log_gate" else name,
        token_symbol=token_symbol,
        span=table.document.key_span(table.path),
        per_step=steps in shape,
    )


def _name(table: Table) -> str:
    """Inputs become arguments of a Python function."""
    name = str(table.path[-1])
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        message = f"an input's name must be a lower-case identifier and no Python keyword, got {name!r}"
        raise QlagenError("E-VALUE", message, span=table.document.key_span(table.path))
    return name


def _shape(table: Table, dims: tuple[str, ...], steps: str) -> tuple[str, ...]:
    shape = table.strings("shape")
    for index, dim in enumerate(shape):
        if dim not in dims:
            raise QlagenError(
                "E-DIM",
                f"shape uses {dim!r}, which [dims] does not declare",
                span=table.value_span("shape", index),
                notes=[f"declared: {', '.join(dims)}; the chunk length C is implied and not written"],
                hints=did_you_mean(dim, dims),
            )
    vector = shape[1:] if steps and shape[:1] == (steps,) else shape
    if steps in vector:
        hints = [f'write for example ["{steps}", "K"]']
        raise table.bad_value("shape", f"{steps!r}, which counts the steps of a token, stands first and once", hints)
    if len(vector) > 1:
        besides = f" besides the steps {steps!r}" if steps else ""
        raise table.bad_value(
            "shape", f"at most one dimension per token and head is allowed{besides}, got {len(vector)}"
        )
    return shape


def _heads(table: Table, head_names: tuple[str, str]) -> Literal["key", "value", "none"]:
    value = table.choice("heads", (*head_names, "none"))
    return "none" if value == "none" else "key" if value == head_names[0] else "value"


def _range(table: Table) -> tuple[float | None, float | None]:
    text = table.string("range")
    if found := _UPPER.fullmatch(text):
        return None, float(found[1])
    if found := _LOWER.fullmatch(text):
        return float(found[1]), None
    if found := _BETWEEN.fullmatch(text):
        low, high = float(found[1]), float(found[2])
        if low <= high:
            return low, high
        raise table.bad_value("range", f"the lower bound {found[1]} is above the upper bound {found[2]}")
    raise table.bad_value("range", f"{text!r} is not a range", ['write "<=0", ">=0" or "[0,2]"'])


def _decay(table: Table, name: str, dtype: str, heads: str, bounds: tuple[float | None, float | None]) -> str:
    """The log gate's rules, and the name of its exponential in the recurrence."""
    if bounds[1] is None or bounds[1] > 0:
        raise QlagenError(
            "E-GATE",
            f"the log gate {name!r} must declare a range with an upper bound of 0 or less",
            span=table.value_span("range") if "range" in table.values else table.document.key_span(table.path),
            notes=["exponents of sums of it are then never above 0 and cannot overflow"],
            hints=['add range = "<=0"'],
        )
    if dtype != "float32":
        raise table.bad_value("dtype", 'a log gate must be "float32": it is summed over the chunk')
    if heads == "none":
        raise table.bad_value("heads", "a log gate belongs to a head; name one of the [heads]")
    if "decay" not in table.values:
        message = f"the log gate {name!r} must name its decay exp({name})"
        hints = ['add for example decay = "a"; the recurrence then uses a']
        raise QlagenError("E-MISSING", message, span=table.document.key_span(table.path), hints=hints)
    decay = table.string("decay")
    if not re.fullmatch(NAME_PATTERN, decay):
        raise table.bad_value("decay", f"{decay!r} is not a name")
    return decay


def _norm(table: Table, shape: tuple[str, ...]) -> float:
    found = _UPPER.fullmatch(table.string("norm"))
    if not found or float(found[1]) <= 0:
        raise table.bad_value("norm", f"{table.string('norm')!r} is not a bound on a norm", ['write for example "<=1"'])
    if not shape:
        raise table.bad_value("norm", "only a vector has a norm; give a number a range")
    return float(found[1])


def _default(table: Table, dims: tuple[str, ...], heads: str) -> str:
    text = table.string("default")
    if heads != "none":
        raise table.bad_value("default", 'only an input with heads = "none" may have a default')
    power = _POWER.fullmatch(text)
    if power and power[1] not in dims:
        message = f"default uses {power[1]!r}, which [dims] does not declare"
        raise QlagenError("E-DIM", message, span=table.value_span("default"), hints=did_you_mean(power[1], dims))
    if not power and not re.fullmatch(_NUMBER, text):
        hints = ['write a number such as "1.0", or a power of a dimension such as "K^-1/2"']
        raise table.bad_value("default", f"{text!r} is not a default", hints)
    return text
