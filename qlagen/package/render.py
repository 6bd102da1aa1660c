"""Texts of the library's templates, and hashes over templates."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from qlagen.emit.templates import environment, template_root


def library_root() -> Path:
    """The folder of the library's templates and fixed files."""
    return template_root() / "library"


def render(template: str, view: object) -> str:
    """The text of a template below `library_root` for a frozen view."""
    return environment().get_template(f"library/{template}").render(view=view).lstrip("\n")


@functools.cache
def templates_digest() -> str:
    """SHA-256 over all templates and fixed files, names included."""
    return _digest(template_root(), "*")


@functools.cache
def library_digest() -> str:
    """SHA-256 over the templates (not the fixed files) of the library, for banners."""
    return _digest(library_root(), "*.jinja")


def _digest(root: Path, pattern: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(item for item in root.rglob(pattern) if item.is_file() and "__pycache__" not in item.parts):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
