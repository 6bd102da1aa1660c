"""Typed construction of function calls: what each function takes, and what is wrong with an argument that it does not.

The functions are those of `qlagen.spec.functions`.
"""

from __future__ import annotations

from qlagen.errors import QlagenError, Span, did_you_mean
from qlagen.spec.functions import FUNCTIONS, GATES, OF_STEPS, Function, Structure
from qlagen.spec.model import Call, Shape, Transpose
from qlagen.spec.show import format_shape
from qlagen.spec.typing import Scope, Typed, check_no_log_gate, check_not_constant, limit_depth, short


def find_function(name: str, span: Span, scope: Scope) -> Function:
    """Raises E-FUNC, also for a function of steps where a token is one step."""
    if name not in FUNCTIONS:
        hints = did_you_mean(name, FUNCTIONS)
        if not hints and name in ("exp", "log", "cumsum", "diag"):
            hints = ("gates enter as decay(G), from_start(G), to_end(G), total(G); scale rows by writing c * X",)
        notes = [f"the functions are {', '.join(FUNCTIONS)}"]
        raise QlagenError("E-FUNC", f"unknown function {name!r}", span=span, notes=notes, hints=hints)
    if name in OF_STEPS and not scope.step_rows:
        message = f"{name} is for the stages of an operator with several steps per token"
        hint = 'such an operator has steps = "M" in [spec], M in [dims] and a table [step]'
        raise QlagenError("E-FUNC", message, span=span, notes=[_usage(FUNCTIONS[name])], hints=[hint])
    return FUNCTIONS[name]


def make_call(name: str, name_span: Span, arguments: list[Typed], span: Span, scope: Scope) -> Typed:
    """Raises E-FUNC, E-ARITY, E-LOGGATE, E-SHAPE, E-STRUCT, E-SCALE and E-DEPTH."""
    function = find_function(name, name_span, scope)
    if len(arguments) != len(function.parameters):
        wanted = f"{len(function.parameters)} argument" + "s" * (len(function.parameters) != 1)
        message = f"{name} takes {wanted}, got {len(arguments)}"
        raise QlagenError("E-ARITY", message, span=span, notes=[_usage(function)])
    # The gate comes last and says what shape the other arguments must have, so it is looked at first.
    for index in reversed(range(len(arguments))):
        _check_argument(function, index, arguments, scope)
    last = arguments[-1]
    node = Call(name, tuple(a.node for a in arguments), _result_shape(function, last.node.shape, scope), span)
    depth = 1 + max(a.depth for a in arguments)
    gates_in = function.name == "before" or (function.name == "each" and last.log_gate)
    return limit_depth(
        Typed(
            node,
            depth,
            _structure(function, last),
            log_gate=gates_in,
            exclusive=gates_in and (last.exclusive or function.name == "before"),
        )
    )


def _result_shape(function: Function, argument: Shape, scope: Scope) -> Shape:
    sides = {"rows": argument[0], "columns": argument[1], "tokens": "C", "steps": scope.step_rows, "one": "1"}
    return (sides[function.result[0]], sides[function.result[1]])


def _structure(function: Function, last: Typed) -> Structure:
    return "strict" if function.structure == "lower" and last.exclusive else function.structure


def _check_argument(function: Function, index: int, arguments: list[Typed], scope: Scope) -> None:
    argument, takes = arguments[index], function.takes[index]
    if takes in GATES:
        _check_gate(function, index, argument)
        return
    if not (takes == "tokens" and argument.log_gate):
        check_no_log_gate(argument)
    elif argument.exclusive:
        hint = f"write before({function.name}(...)): a step's decay counts at the token's first step"
        raise _bad_gate(function, argument, f"{function.name} takes a gate as it is, not before(...) of it", [hint])
    check_not_constant(argument, f"the argument of {function.name}")
    wanted = _wanted_shape(function, index, arguments, scope)
    if argument.node.shape != wanted:
        raise _argument_shape(function, index, argument, wanted)
    if takes == "strict" and argument.structure != "strict":
        raise _not_strict(function, argument)


def _check_gate(function: Function, index: int, argument: Typed) -> None:
    takes, shape = function.takes[index], argument.node.shape
    if not argument.log_gate:
        message = f"{function.name} takes a cumulative log gate, got {short(argument.node)}"
        hints = ['give the upper-case name of an input with role = "log_gate"']
        raise _bad_gate(function, argument, message, hints)
    if takes == "running_gate" and argument.exclusive:
        message = f"{function.name} takes a gate as it is, got {short(argument.node)}"
        raise _bad_gate(function, argument, message, ["before(G) goes into decay, gdot and from_start"])
    if takes == "scalar_gate" and shape[1] != "1":
        raise _argument_shape(function, index, argument, (shape[0], "1"), _channel_hint(function, shape))
    if takes == "channel_gate" and shape[1] == "1":
        hint = f"a gate with one number a token leaves the product: (X @ Y^T) * decay({short(argument.node)})"
        raise _argument_shape(function, index, argument, (shape[0], "K"), [hint])


def _channel_hint(function: Function, shape: Shape) -> list[str]:
    if function.name != "decay":
        return []
    return [f"a gate for each of {shape[1]} channels stays inside the product: write gdot(X, Y, G)"]


def _wanted_shape(function: Function, index: int, arguments: list[Typed], scope: Scope) -> Shape:
    """The shape that an argument must have; it depends on the call's gate, or on the argument itself."""
    got = arguments[index].node.shape
    match function.takes[index]:
        case "channels":
            return arguments[-1].node.shape
        case "tokens":
            return ("C", got[1])
        case "steps":
            return (scope.step_rows, got[1])
        case _:
            rows = scope.step_rows if scope.step_rows and got[0] == scope.step_rows else "C"
            return (rows, rows)


def _not_strict(function: Function, argument: Typed) -> QlagenError:
    inner = f"{function.name}(stril({short(argument.node)}))"
    if isinstance(argument.node, Transpose):
        inner = f"{function.name}({short(argument.node.operand)})^T"
    return QlagenError(
        "E-STRUCT",
        f"{function.name} needs a strictly lower argument; {short(argument.node)} is not known to be one",
        span=argument.node.span,
        notes=["strictly lower: stril(...), its product with anything by *, sums of such"],
        hints=[f"write {inner}"],
    )


def _bad_gate(function: Function, argument: Typed, message: str, hints: list[str]) -> QlagenError:
    return QlagenError("E-LOGGATE", message, span=argument.node.span, notes=[_usage(function)], hints=hints)


def _argument_shape(
    function: Function, index: int, argument: Typed, wanted: Shape, hints: list[str] | None = None
) -> QlagenError:
    got = f"{short(argument.node)} {format_shape(argument.node.shape)}"
    which = "" if len(function.parameters) == 1 else f" as {function.parameters[index]}"
    message = f"{function.name} takes a {format_shape(wanted)} argument{which}, got {got}"
    return QlagenError("E-SHAPE", message, span=argument.node.span, notes=[_usage(function)], hints=hints or [])


def _usage(function: Function) -> str:
    return f"{function.name}({', '.join(function.parameters)}) is {function.meaning}"
