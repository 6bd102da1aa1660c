"""Spec files: TOML text in, a typed and checked `OpSpec` out."""

from qlagen.spec.load import load_spec, load_specs, parse_spec
from qlagen.spec.show import format_expression, show_spec

__all__ = ["format_expression", "load_spec", "load_specs", "parse_spec", "show_spec"]
