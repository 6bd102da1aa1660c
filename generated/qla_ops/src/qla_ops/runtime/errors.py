"""Faults that a caller can cause. Bad arguments raise ValueError; the classes here are for the rest."""

from __future__ import annotations


class ImplementationUnavailableError(RuntimeError):
    """The implementation that was asked for cannot take this call. The message says why and what to do."""


class BuildError(RuntimeError):
    """A kernel could not be built. The message ends with what the compiler said."""


class LoadError(RuntimeError):
    """A built kernel could not be loaded."""


class BadValueError(ValueError):
    """``QLA_OPS_DEBUG=1`` found NaN or infinity, or a value outside its declared range."""


def bad_argument(function: str, argument: str, got: object, allowed: str) -> ValueError:
    """The ValueError for one argument: what was got, what is allowed."""
    return ValueError(f"{function}: {argument} is {got}; {allowed}")
