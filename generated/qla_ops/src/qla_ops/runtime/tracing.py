"""What `torch.compile` must know of functions that it cannot trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def constant_while_traced(function: Function) -> Function:
    """Marks a function whose result is a constant of the traced program: it is called while the program is traced.

    It does what `torch.compiler.assume_constant_result` does, which would import the whole compiler with the library.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
