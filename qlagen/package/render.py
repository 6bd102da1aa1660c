"""Texts of the library's templates, and a hash over all templates."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from qlagen.emit.environment import environment, template_root


def library_root() -> Path:
    """The folder of the library's templates and fixed files."""
    return template_root() / "library"


def render(template: str, view: object) -> str:
    """The text of a template below `library_root` for a frozen view."""
    return environment().get_template(f"library/{template}").render(view=view).lstrip("\n")


@cache
def templates_digest() -> str:
    """SHA-256 over all templates, names included."""
    digest = hashlib.sha256()
    root = template_root()
    for path in sorted(item for item in root.rglob("*") if item.is_file() and "__pycache__" not in item.parts):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
