"""All files of the library as texts, from compiled operators. Nothing is written here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePath

from qlagen import __version__
from qlagen.errors import QlagenError
from qlagen.package.compile import CompiledOperator
from qlagen.package.render import library_root, render, templates_digest
from qlagen.package.views import OperatorView, banner, view_library, view_operator
from qlagen.schedule.target import load_target

PACKAGE = "src/qla_ops"
MANIFEST = "manifest.json"


def library_files(operators: tuple[CompiledOperator, ...]) -> dict[str, str]:
    """Path (from the library's root, with slashes) to text, the manifest included; sorted by path."""
    ordered = tuple(sorted(operators, key=lambda item: item.spec.name))
    views = tuple(view_operator(item) for item in ordered)
    files = {**_fixed_files(), **_common_files(views, ordered[0].target)}
    for compiled, view in zip(ordered, views, strict=True):
        own = _operator_files(compiled, view)
        if files.keys() & own.keys():
            message = f"the library has files of its own called {compiled.spec.name!r}, so no operator can be"
            raise QlagenError("E-RESERVED", message, hints=["give the operator another name"])
        files |= own
    files[MANIFEST] = manifest(files, ordered)
    return dict(sorted(files.items()))


def manifest(files: Mapping[str, str], operators: tuple[CompiledOperator, ...]) -> str:
    """JSON: generator version, a hash of each spec, of the templates and of every file."""
    specs = {item.spec.name: {"file": PurePath(item.spec.file).name, "sha256": item.spec.digest} for item in operators}
    record = {
        "generator": f"qlagen {__version__}",
        "specs": specs,
        "templates": templates_digest(),
        "files": {path: sha256(text) for path, text in sorted(files.items())},
    }
    return json.dumps(record, indent=2) + "\n"


def sha256(text: str) -> str:
    """Of the text as UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def _fixed_files() -> dict[str, str]:
    """Files that are copied as they are: everything in the library's templates that is no template."""
    root = library_root()
    files = {}
    for path in sorted(item for item in root.rglob("*") if item.is_file()):
        if path.suffix != ".jinja" and "__pycache__" not in path.parts:
            files[_place(path.relative_to(root).as_posix())] = path.read_text("utf-8")
    return files


def _place(path: str) -> str:
    return f"{PACKAGE}/{path.removeprefix('package/')}" if path.startswith("package/") else path


def _common_files(views: tuple[OperatorView, ...], target: str) -> dict[str, str]:
    """Files that all operators share."""
    library = view_library(views, load_target(target))
    return {
        "README.md": render("README.md.jinja", library),
        "pyproject.toml": render("pyproject.toml.jinja", library),
        f"{PACKAGE}/__init__.py": render("package/__init__.py.jinja", library),
        f"{PACKAGE}/kernels/__init__.py": f'{library.banner}\n"""Kernel sources. Importing one needs TileLang."""\n',
        f"{PACKAGE}/runtime/costs.py": render("package/runtime/costs.py.jinja", library),
        f"{PACKAGE}/operators/__init__.py": f'{library.banner}\n"""One module for each operator."""\n',
    }


def _operator_files(compiled: CompiledOperator, view: OperatorView) -> dict[str, str]:
    name = compiled.spec.name
    folder = f"{PACKAGE}/kernels/{name}"
    files = {
        f"{PACKAGE}/operators/{name}.py": render("package/operator.py.jinja", view),
        f"{PACKAGE}/portable/{name}.py": compiled.portable,
    }
    if not compiled.obstacle:
        files[f"{folder}/__init__.py"] = f'{banner("operator specs")}\n"""Kernels of {view.function}."""\n'
    for kernels in compiled.kernels:
        files |= {f"{folder}/{kernel.stem}.py": kernel.text for kernel in kernels}
    return files
