"""Stored derivations are what deriving gives, and count only for the sources that they were made from."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from qlagen.algebra import cache
from qlagen.algebra.cache import (
    derive_backward_cached,
    derive_cached,
    engine_digest,
    make_record,
    read_record,
    record_path,
)
from qlagen.algebra.derive_backward import derive_backward
from qlagen.errors import QlagenError
from qlagen.spec.load import load_spec
from qlagen.spec.model import OpSpec

from .operators import NAMES, SPECS, derivation, spec


def stored_spec(name: str, folder: Path) -> OpSpec:
    """The spec with its record written beside it."""
    op = dataclasses.replace(spec(name), file=str(folder / f"{name}.toml"))
    record_path(op).parent.mkdir()
    record_path(op).write_text(make_record(op), encoding="utf-8")
    return op


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.toml")), ids=lambda p: p.stem)
def test_the_repository_is_up_to_date(path: Path) -> None:
    assert read_record(load_spec(path)) is not None, f"{path}: run python -m tools.derive"


@pytest.mark.parametrize("name", NAMES)
def test_the_repository_holds_what_deriving_gives(name: str) -> None:
    """Forward for all; backward for the cheaper two here, for the third in the tests of its bill."""
    op = load_spec(SPECS / f"{name}.toml")
    stored = derive_backward_cached(op)
    fresh = derivation(name)
    kept = stored.forward
    assert (kept.chosen, kept.steps, kept.proof) == (fresh.chosen, fresh.steps, fresh.proof)
    assert (kept.textbook_cost, kept.chosen_cost) == (fresh.textbook_cost, fresh.chosen_cost)
    if name != "gated_delta_rule":
        again = derive_backward(fresh)
        assert again.chosen == stored.chosen
        assert (again.steps, again.saved, again.proof) == (stored.steps, stored.saved, stored.proof)
        assert (again.textbook_cost, again.start_cost, again.chosen_cost) == (
            stored.textbook_cost,
            stored.start_cost,
            stored.chosen_cost,
        )


def test_stored_is_read_and_not_derived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    op = stored_spec("simple_gla", tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("derived")

    monkeypatch.setattr(cache, "derive", refuse)
    monkeypatch.setattr(cache, "derive_backward", refuse)
    assert derive_backward_cached(op).forward.chosen == derive_cached(op).chosen == derivation("simple_gla").chosen


def test_another_spec_text_or_compiler_is_derived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    op = stored_spec("simple_gla", tmp_path)
    assert read_record(op) is not None
    assert read_record(dataclasses.replace(op, digest="0" * 64)) is None
    monkeypatch.setattr(cache, "engine_digest", lambda: "0" * 64)
    assert read_record(op) is None
    assert derive_cached(op).chosen == derivation("simple_gla").chosen


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 1}'])
def test_damaged_files_are_derived(tmp_path: Path, text: str) -> None:
    op = stored_spec("simple_gla", tmp_path)
    record_path(op).write_text(text, encoding="utf-8")
    assert read_record(op) is None


def test_records_are_the_same_text_again_and_small() -> None:
    text = make_record(spec("simple_gla"))
    assert text == make_record(spec("simple_gla"))
    assert text.endswith("\n")
    assert len(text) < 20_000
    assert set(json.loads(text)) == {"key", "forward", "backward", "nodes"}


def test_the_digest_covers_what_decides() -> None:
    folder = Path(cache.__file__).parent
    names = {path.name for path in folder.glob("*.py")}
    assert set(cache.PRESENTATION) <= names
    assert not {"ir.py", "rules.py", "cost.py", "search.py", "derive.py", "adjoint.py"} & set(cache.PRESENTATION)
    assert len(engine_digest()) == 64


def test_nothing_that_decides_uses_what_only_presents() -> None:
    folder = Path(cache.__file__).parent
    presenting = {name.removesuffix(".py") for name in cache.PRESENTATION} - {"__init__"}
    for path in folder.glob("*.py"):
        if path.name not in cache.PRESENTATION:
            text = path.read_text(encoding="utf-8")
            assert not any(f"qlagen.algebra.{name} " in text for name in presenting), path.name


def test_a_spec_that_differentiates_nothing(tmp_path: Path) -> None:
    op = dataclasses.replace(spec("simple_gla"), gradients=(), file=str(tmp_path / "x.toml"))
    with pytest.raises(QlagenError, match="E-GRAD"):
        derive_backward_cached(op)
