"""Brings a folder to a set of files: writes what differs, removes what is no longer made, or only compares."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qlagen.errors import QlagenError

KEPT = ("prebuilt", "build", "dist")
"""Folders inside the library that users fill; they are left alone, as are caches and installation metadata."""


@dataclass(frozen=True)
class BuildReport:
    """Paths from the library's root, sorted. With `check` nothing was written: they are what is stale."""

    folder: str
    written: tuple[str, ...]
    """New or different."""
    removed: tuple[str, ...]
    """No longer made."""
    unchanged: int
    checked_only: bool

    @property
    def stale(self) -> tuple[str, ...]:
        """Every path that differs."""
        return tuple(sorted((*self.written, *self.removed)))


def write_tree(files: Mapping[str, str], folder: Path, *, check: bool = False) -> BuildReport:
    """Makes `folder` hold exactly `files`; with `check` says what would change.

    Raises E-OUTPUT when the folder cannot be written, or holds files but no library.
    """
    try:
        present = existing_files(folder)
        if present and "manifest.json" not in present:
            message = f"{folder} is not empty and holds no generated library"
            raise QlagenError("E-OUTPUT", message, hints=["choose an empty or a new folder"])
        different = tuple(path for path, text in sorted(files.items()) if not _same(folder / path, text))
        removed = tuple(sorted(present - set(files)))
        if not check:
            for path in different:
                _write(folder / path, files[path])
            for path in removed:
                (folder / path).unlink()
                _remove_empty_parents(folder / path, folder)
    except OSError as fault:
        raise QlagenError("E-OUTPUT", f"cannot write {folder}: {fault.strerror or fault}") from fault
    return BuildReport(str(folder), different, removed, len(files) - len(different), check)


def existing_files(folder: Path) -> set[str]:
    """Paths of the files in the folder that a build may have made."""
    found = set()
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        parts = path.relative_to(folder).parts
        others = (
            part in KEPT or part == "__pycache__" or part.endswith(".egg-info") or part[0] == "." for part in parts
        )
        if path.is_file() and not any(others):
            found.add(path.relative_to(folder).as_posix())
    return found


def _same(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode()
    except OSError:
        return False


def _write(path: Path, text: str) -> None:
    """A reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(text.encode())
    # Files made by mkstemp are private; these are sources like any other.
    os.chmod(name, 0o644)
    os.replace(name, path)


def _remove_empty_parents(path: Path, root: Path) -> None:
    for parent in path.parents:
        if parent == root or any(parent.iterdir()):
            return
        parent.rmdir()
