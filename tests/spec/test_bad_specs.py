"""Every error code has a bad spec whose whole message is pinned in the text file beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from qlagen.errors import QlagenError
from qlagen.spec import load_spec, load_specs
from qlagen.spec.codes import CODES

ROOT = Path(__file__).resolve().parents[2]
BAD_SPECS = ROOT / "tests" / "bad_specs"
# A spec whose stages differ from its recurrence loads; the proof rejects it (tests/algebra).
NAMES = sorted(path.stem for path in BAD_SPECS.glob("*.toml") if not path.stem.startswith("proof_"))
# These need no file, or two.
OTHERWISE = {"E-DUPLICATE", "E-PROOF"}


@pytest.mark.parametrize("name", NAMES)
def test_message_is_pinned(name: str, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BAD_SPECS)
    with pytest.raises(QlagenError) as caught:
        load_spec(f"{name}.toml")
    error = caught.value
    golden(BAD_SPECS / f"{name}.txt", error.render() + "\n")
    assert error.code.removeprefix("E-").lower() == name.split("_")[0], "a bad spec is named after its code"
    assert error.span is not None
    assert error.span.file == f"{name}.toml"
    line = (BAD_SPECS / f"{name}.toml").read_bytes().decode("latin-1").split("\n")[error.span.line - 1]
    assert error.span.text in ("", line)
    assert 1 <= error.span.column <= len(line) + 1


def test_every_code_has_a_bad_spec() -> None:
    pinned = {re.search(r"error\[(E-[A-Z]+)\]", path.read_text("utf-8"))[1] for path in BAD_SPECS.glob("*.txt")}
    assert pinned | OTHERWISE == set(CODES)


def test_every_golden_has_its_spec() -> None:
    assert {path.stem for path in BAD_SPECS.glob("*.txt")} == {path.stem for path in BAD_SPECS.glob("*.toml")}


def test_codes_in_the_source_are_the_documented_ones() -> None:
    sources = "".join(path.read_text("utf-8") for path in sorted((ROOT / "qlagen" / "spec").glob("*.py")))
    raised = set(re.findall(r'(?:QlagenError|error)\(\s*"(E-[A-Z]+)"', sources))
    assert raised | {"E-PROOF"} == set(CODES)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(
        QlagenError, match=r"cannot read the spec file .*absent\.toml.*: No such file or directory"
    ) as caught:
        load_spec(tmp_path / "absent.toml")
    assert caught.value.code == "E-FILE"


def test_two_specs_of_one_name(tmp_path: Path) -> None:
    text = (ROOT / "specs" / "delta_rule.toml").read_text("utf-8")
    paths = [tmp_path / "a.toml", tmp_path / "b.toml"]
    for path in paths:
        path.write_text(text, "utf-8")
    with pytest.raises(QlagenError, match=r"b.toml:1:1: error\[E-DUPLICATE\]: .* already defined by .*a.toml"):
        load_specs(paths)
