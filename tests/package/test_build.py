"""The build: complete, deterministic, never more than what differs, and honest about what is stale."""

from __future__ import annotations

import ast
import hashlib
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from qlagen.errors import QlagenError
from qlagen.package.arguments import order_arguments, read_default, view_arguments
from qlagen.package.build import TARGET, build_library
from qlagen.package.compile import CompiledOperator, compile_operator, load_schedules
from qlagen.package.kernel_files import read_kernel_file
from qlagen.package.render import library_root, templates_digest
from qlagen.package.tree import MANIFEST, PACKAGE, library_files
from qlagen.package.write import existing_files, write_tree
from qlagen.spec.load import load_spec, load_specs, parse_spec
from tests.package.conftest import ROOT

SPECS = sorted((ROOT / "specs").glob("*.toml"))
LIBRARY = ROOT / "generated" / "qla_ops"


@cache
def compiled() -> CompiledOperator:
    """The cheapest operator to compile."""
    spec = load_spec(ROOT / "specs" / "simple_gla.toml")
    return compile_operator(spec, TARGET, load_schedules(spec, TARGET))


@cache
def files() -> dict[str, str]:
    return library_files((compiled(),))


@pytest.mark.slow
def test_the_committed_library_is_fresh() -> None:
    report = build_library(load_specs(SPECS), LIBRARY, check=True)
    assert report.stale == ()
    assert report.unchanged > 30


def test_manifest_of_the_committed_library() -> None:
    """Every file with its hash, and no file that it does not name."""
    manifest = json.loads((LIBRARY / MANIFEST).read_text())
    for path, digest in manifest["files"].items():
        assert hashlib.sha256((LIBRARY / path).read_bytes()).hexdigest() == digest, path
    assert existing_files(LIBRARY) - {MANIFEST} == set(manifest["files"])
    specs = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in SPECS}
    assert {item["file"]: item["sha256"] for item in manifest["specs"].values()} == specs
    assert manifest["templates"] == templates_digest()
    assert list(manifest["files"]) == sorted(manifest["files"])


def test_every_file_of_an_operator() -> None:
    made = files()
    for path in (
        *("LICENSE", "README.md", "manifest.json", "pyproject.toml"),
        *(f"{PACKAGE}/{name}" for name in ("__init__.py", "__main__.py", "py.typed", "runtime/dispatch.py")),
        *(f"{PACKAGE}/{folder}/simple_gla.py" for folder in ("operators", "portable")),
        *(f"{PACKAGE}/kernels/simple_gla/{name}.py" for name in ("prepare_tile", "forward_v64", "forward_v128")),
    ):
        assert path in made
    for path, text in made.items():
        if path.endswith(".py"):
            ast.parse(text)
            assert "kernels" in path or all(len(line) <= 120 for line in text.splitlines()), path
        assert text.endswith("\n") or not text, path
        assert str(ROOT) not in text


def test_nothing_depends_on_when_or_where(tmp_path: Path) -> None:
    again = compile_operator(compiled().spec, TARGET, load_schedules(compiled().spec, TARGET))
    assert library_files((again,)) == files()
    moved = tmp_path / "simple_gla.toml"
    moved.write_bytes((ROOT / "specs" / "simple_gla.toml").read_bytes())
    elsewhere = compile_operator(load_spec(moved), TARGET, load_schedules(compiled().spec, TARGET))
    assert library_files((elsewhere,)) == files()


def test_no_operator_is_named_in_fixed_files() -> None:
    words = {"gated_delta_rule", "delta_rule", "simple_gla", "gated_delta", "gdn", "kda"}
    for path in library_root().rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            text = path.read_text().lower()
            assert not [word for word in words if word in text], path


# Writing


def test_only_what_differs_is_written(tmp_path: Path) -> None:
    made = {"manifest.json": "{}\n", "a/b.py": "one\n", "a/c.py": "two\n"}
    first = write_tree(made, tmp_path)
    assert first.written == ("a/b.py", "a/c.py", "manifest.json")
    times = {path: (tmp_path / path).stat().st_mtime_ns for path in made}
    second = write_tree({**made, "a/c.py": "three\n"}, tmp_path)
    assert (second.written, second.removed, second.unchanged) == (("a/c.py",), (), 2)
    assert (tmp_path / "a/b.py").stat().st_mtime_ns == times["a/b.py"]
    assert (tmp_path / "a/c.py").read_text() == "three\n"


def test_what_is_no_longer_made_is_removed(tmp_path: Path) -> None:
    write_tree({"manifest.json": "", "old/x.py": "", "old/deep/y.py": "", "new.py": ""}, tmp_path)
    kept = tmp_path / "src/qla_ops/prebuilt/kernel.so"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"library")
    cache = tmp_path / "src/.mypy_cache/x.json"
    cache.parent.mkdir()
    cache.touch()
    report = write_tree({"manifest.json": "", "new.py": ""}, tmp_path)
    assert report.removed == ("old/deep/y.py", "old/x.py")
    assert not (tmp_path / "old").exists()
    assert kept.exists()
    assert cache.exists()


@pytest.mark.parametrize("fault", ["changed", "missing", "extra"])
def test_check_finds_what_is_stale_and_writes_nothing(fault: str, tmp_path: Path) -> None:
    made = {"manifest.json": "{}\n", "a.py": "one\n"}
    write_tree(made, tmp_path)
    assert write_tree(made, tmp_path, check=True).stale == ()
    path = tmp_path / ("b.py" if fault == "extra" else "a.py")
    if fault == "missing":
        path.unlink()
    else:
        path.write_text("other\n")
    before = sorted((item, item.read_bytes()) for item in tmp_path.rglob("*"))
    report = write_tree(made, tmp_path, check=True)
    assert report.stale == (path.name,)
    assert sorted((item, item.read_bytes()) for item in tmp_path.rglob("*")) == before


def test_other_peoples_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(QlagenError, match=f"{tmp_path} is not empty and holds no generated library") as caught:
        write_tree({"manifest.json": ""}, tmp_path)
    assert caught.value.code == "E-OUTPUT"
    assert (tmp_path / "thesis.tex").exists()
    with pytest.raises(QlagenError, match="cannot write"):
        write_tree({"manifest.json": ""}, tmp_path / "thesis.tex")


def test_nothing_to_build(tmp_path: Path) -> None:
    with pytest.raises(QlagenError, match="there is no spec to build a library from"):
        build_library((), tmp_path)


# Arguments


@pytest.mark.parametrize("name", ["strict", "cu_seqlens", "workers", "o"])
def test_names_that_the_library_uses(name: str) -> None:
    spec = parse_spec((ROOT / "specs" / "simple_gla.toml").read_text(), "x.toml")
    inputs = tuple(replace(item, name=name) if item.name == "scale" else item for item in spec.inputs)
    with pytest.raises(QlagenError, match=f"the library has an argument '{name}' of its own") as caught:
        order_arguments(replace(spec, inputs=inputs))
    assert caught.value.code == "E-RESERVED"
    assert caught.value.span == spec.input("scale").span


def test_an_operator_named_like_a_fixed_file() -> None:
    with pytest.raises(QlagenError, match="the library has files of its own called 'runtime'"):
        library_files((replace(compiled(), spec=replace(compiled().spec, name="runtime")),))


def test_defaults_come_last() -> None:
    spec = compiled().spec
    mixed = replace(spec, inputs=(spec.input("scale"), *(item for item in spec.inputs if item.name != "scale")))
    assert [item.name for item in order_arguments(mixed)] == ["q", "k", "v", "g", "scale"]
    assert [item.required for item in view_arguments(mixed)] == [True, True, True, True, False]


def test_documentation_of_arguments() -> None:
    lines = [line for item in view_arguments(load_spec(ROOT / "specs" / "gated_delta_rule.toml")) for line in item.doc]
    text = " ".join(line.strip() for line in lines)
    assert (
        "g: [B, T, Hv], fp32, bf16 or fp16, computed in fp32; the natural logarithm of the decay; entries <= 0." in text
    )
    assert "beta: [B, T, Hv], fp32, bf16 or fp16, computed in fp32; entries in [0, 2]." in text
    assert "k: [B, T, Hk, K], bf16 or fp16, one type for all data" in text
    assert "of Euclidean norm at most 1." in text
    assert "scale: a number; None means K^-1/2." in text


@pytest.mark.parametrize(
    ("text", "expected"), [("K^-1/2", ("K", -0.5)), ("V^2", ("V", 2.0)), ("1.0", (1.0, 1.0)), ("-3", (-3.0, 1.0))]
)
def test_defaults(text: str, expected: tuple[str | float, float]) -> None:
    assert read_default(text) == expected


def test_constants_of_a_kernel_file() -> None:
    kernel = compiled().kernels[-1][0]
    assert kernel.name == "simple_gla_forward_v128"
    assert kernel.stem == "forward_v128"
    assert kernel.kind == "carried"
    assert kernel.data_types == ("bfloat16", "float16")
    assert kernel.scalars[0] == ("scale", "float32")
    without = kernel.text.replace("TENSORS =", "OTHERS =")
    with pytest.raises(QlagenError, match="simple_gla_forward_v128 does not export TENSORS as a literal"):
        read_kernel_file(without, "simple_gla")
