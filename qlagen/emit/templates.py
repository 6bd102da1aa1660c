"""The Jinja2 environment of the kernel templates, and the check that templates and views agree."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from pathlib import Path

import jinja2
from jinja2 import meta, nodes

from qlagen.emit import file_views, views
from qlagen.errors import QlagenError

KERNEL = "kernel.py.jinja"
DEVICE = (
    "row_helpers",
    "segment",
    "matrices",
    "decay",
    "state",
    "blocks",
    "inverse",
    "head_inverse",
    "head_octets",
    "head_rows",
)
"""Templates of device functions."""
OPERATIONS = ("operations.jinja", "elementwise.jinja", "synchronisation.jinja", "movers.jinja", "solver.jinja")
OTHERS = ("comments.jinja", "fragments.jinja", "helpers.jinja", *(f"{name}.cuh.jinja" for name in DEVICE))
KERNEL_TEMPLATES = (KERNEL, *OPERATIONS, *OTHERS)


def template_root() -> Path:
    """The templates' folder: in the checkout, or inside the installed package."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "templates", package / "_templates"):
        if (folder / KERNEL).is_file():
            return folder
    raise QlagenError(
        "E-TEMPLATES",
        "the kernel templates are missing",
        notes=[f"looked for {KERNEL} beside and inside the package qlagen"],
        hints=["install qlagen again"],
    )


def make_environment(root: Path) -> jinja2.Environment:
    """An environment in which an undefined name is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(root),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


@functools.cache
def environment() -> jinja2.Environment:
    """The checked environment of the kernel templates."""
    made = make_environment(template_root())
    check_templates(made)
    return made


@functools.cache
def template_digest() -> str:
    """A short hash of all kernel templates."""
    root = template_root()
    texts = (f"{name}\n{(root / name).read_text(encoding='utf-8')}" for name in KERNEL_TEMPLATES)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def check_templates(made: jinja2.Environment) -> None:
    """The skeleton reads every field of `KernelView` and nothing else; so does each operation's macro of its view.

    Raises E-TEMPLATES with the names in which a template and a view differ.
    """
    source = _parse(made, KERNEL)
    unknown = meta.find_undeclared_variables(source) - {"kernel"}
    _compare(KERNEL, "kernel", _read_fields(source, "kernel"), file_views.KernelView, unknown)
    spelled: dict[str, nodes.Macro] = {}
    for name in OPERATIONS:
        spelled |= {macro.name: macro for macro in _parse(made, name).find_all(nodes.Macro)}
    for line in views.Line.__subclasses__():
        if line.macro not in spelled:
            raise QlagenError("E-TEMPLATES", f"no macro {line.macro!r} in {', '.join(OPERATIONS)}")
        argument = spelled[line.macro].args[0].name
        _compare(line.macro, argument, _read_fields(spelled[line.macro], argument), line, set())


def _parse(made: jinja2.Environment, name: str) -> nodes.Template:
    assert made.loader is not None
    return made.parse(made.loader.get_source(made, name)[0])


def _read_fields(node: nodes.Node, argument: str) -> set[str]:
    """Attributes of `argument` that a template's node reads."""
    found = node.find_all(nodes.Getattr)
    return {g.attr for g in found if isinstance(g.node, nodes.Name) and g.node.name == argument}


def _compare(place: str, argument: str, read: set[str], view: type, unknown: set[str]) -> None:
    supplied = {item.name for item in dataclasses.fields(view)}
    missing, unused = sorted((read - supplied) | unknown), sorted(supplied - read)
    if missing or unused:
        notes = [f"not supplied: {', '.join(missing)}"] if missing else []
        notes += [f"never read: {', '.join(unused)}"] if unused else []
        raise QlagenError("E-TEMPLATES", f"{place} and {view.__name__} ({argument}) do not agree", notes=notes)
