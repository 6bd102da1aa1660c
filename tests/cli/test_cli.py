"""The command line: what is printed where, JSON contracts and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from qlagen import __version__
from qlagen.cli import main
from qlagen.cli.parser import CASE_SETS
from qlagen.verify.cases import SETS

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "specs" / "simple_gla.toml"
ROW = {"spec", "case", "implementation", "output", "error", "budget", "ok"}


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def wrong_spec(tmp_path: Path) -> Path:
    """Its stages are not its recurrence."""
    path = tmp_path / "wrong.toml"
    path.write_text(SPEC.read_text().replace("total(G) * S + K^T", "S + K^T"))
    return path


@pytest.fixture
def bad_spec(tmp_path: Path) -> Path:
    path = tmp_path / "bad.toml"
    path.write_text(SPEC.read_text().replace("decay(G)", "decoy(G)"))
    return path


# check


def test_check_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 0
    captured = capsys.readouterr()
    names = sorted(path.stem for path in SPEC.parent.glob("*.toml"))
    assert {"delta_rule", "gated_delta_rule", "kda", "rwkv7", "simple_gla"} <= set(names)
    assert [line.split(":")[0] for line in captured.out.splitlines()] == names
    assert "stages equal the recurrence at C = 64, K = 128, V = 128 (wrong with probability < " in captured.out
    assert captured.err == ""


def test_check_json(wrong_spec: Path, bad_spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", str(SPEC), str(wrong_spec), str(bad_spec)]) == 2
    good, wrong, bad = json.loads(capsys.readouterr().out)
    assert {key: good[key] for key in ("spec", "ok", "errors")} == {"spec": "simple_gla", "ok": True, "errors": []}
    assert 0 < good["proof_bound"] < 1e-12
    assert (wrong["spec"], wrong["ok"], wrong["proof_bound"]) == ("simple_gla", False, None)
    assert [error["code"] for error in wrong["errors"]] == ["E-PROOF"]
    error = bad["errors"][0]
    assert sorted(error) == ["code", "column", "file", "line", "message"]
    assert bad["spec"] == "bad"
    line = bad_spec.read_text().splitlines()[error["line"] - 1]
    assert line[error["column"] - 1 :].startswith("decoy(G)")
    assert error["file"] == str(bad_spec)


def test_check_exit_codes(wrong_spec: Path, bad_spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A failed proof is a failed check; a spec that cannot be read is bad input."""
    assert main(["check", str(wrong_spec)]) == 1
    assert capsys.readouterr().err.startswith(f"{wrong_spec}:")
    assert main(["check", str(bad_spec)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "bad: FAILED (E-UNKNOWN-FUNCTION)\n" or captured.out.startswith("bad: FAILED (E-")
    assert "hint: did you mean 'decay'?" in captured.err
    assert main(["check", str(wrong_spec), str(bad_spec), str(SPEC)]) == 2


def test_no_specs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check"]) == 2
    assert capsys.readouterr().err.startswith("error[E-EMPTY]: no spec is given and there is no specs/*.toml here")


# usage and faults


@pytest.mark.parametrize(
    "arguments", [[], ["compile"], ["show", str(SPEC), "--stage", "sass"], ["explain"], ["check", "--yaml"]]
)
def test_bad_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "usage: qlagen" in captured.err


def test_internal_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> list[str]:
        raise RuntimeError("surprise")

    monkeypatch.setattr("qlagen.cli.targets.target_names", fail)
    assert main(["targets"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" in captured.err
    assert captured.err.endswith("internal error: RuntimeError: surprise; please report it with the lines above\n")


def test_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr("qlagen.cli.targets.target_names", fail)
    assert main(["targets"]) == 130


def test_help_needs_no_stage() -> None:
    """And a closed pipe is no fault."""
    heavy = "[name for name in sys.modules if name in ('sympy', 'numpy', 'qlagen.spec')]"
    code = f"import sys, qlagen.cli.parser; qlagen.cli.parser.make_parser(); print({heavy})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout == "[]\n"
    text = f"{sys.executable} -m qlagen show {SPEC} --stage spec | head -c 1"
    piped = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {text}"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert piped.returncode == 0
    assert piped.stderr == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"qlagen {__version__}\n"


# explain, show, targets


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(SPEC)]) == 0
    assert "Rewrites" in capsys.readouterr().out
    assert main(["explain", str(SPEC), "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)


def test_explain_both_directions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "pareto.png"
    assert main(["explain", str(SPEC), "--backward", "--group", "4", "--json", "--plot", str(plot)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["group"] == 4
    assert report["backward"]["madds"] <= report["backward"]["textbook_madds"]
    assert plot.stat().st_size > 0
    assert main(["explain", str(SPEC), "--latex"]) == 0
    assert capsys.readouterr().out.startswith("\\begin{aligned}")


@pytest.mark.parametrize("count", ["0", "-1", "four"])
def test_a_group_is_a_count(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["explain", str(SPEC), "--group", count])
    assert caught.value.code == 2
    assert "it must be 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        ("spec", "spec simple_gla"),
        ("algebra", "scale"),
        ("program", "prepare"),
        ("schedule", "k_"),
        ("kernel", "def build(data_type):"),
        ("portable", "def forward("),
    ],
)
def test_show(stage: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(SPEC), "--stage", stage]) == 0
    captured = capsys.readouterr()
    assert text in captured.out
    assert captured.err == ""


def test_show_one_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    """It is the file of the library."""
    assert main(["show", str(SPEC), "--stage", "kernel", "--kernel", "forward_v64"]) == 0
    committed = ROOT / "generated/qla_ops/src/qla_ops/kernels/simple_gla/forward_v64.py"
    assert capsys.readouterr().out == committed.read_text()
    assert main(["show", str(SPEC), "--stage", "kernel", "--kernel", "forward_v65"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error[E-KERNEL]: there is no kernel 'forward_v65'\n")
    assert "hint: did you mean 'forward_v64'?" in message


def test_unknown_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(SPEC), "--stage", "schedule", "--target", "sm_9"]) == 2
    assert capsys.readouterr().err.startswith("error[E-")


def test_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets"]) == 0
    assert capsys.readouterr().out.startswith("sm_90a: NVIDIA H200, 132 SMs\n  compiled in: data type")
    assert main(["targets", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["target"] == "sm_90a"


# build


def test_build_and_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["build", str(SPEC), "--output", str(tmp_path / "library")]
    assert main([*arguments, "--check"]) == 1
    assert not (tmp_path / "library").exists()
    assert "stale: src/qla_ops/operators/simple_gla.py" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert "manifest.json" in record["written"]
    assert main([*arguments, "--check"]) == 0
    assert capsys.readouterr().out.endswith("files up to date, 0 stale\n")
    (tmp_path / "library" / "README.md").write_text("edited")
    assert main([*arguments, "--check"]) == 1
    assert capsys.readouterr().out.startswith("stale: README.md\n")


# verify and simulate


def test_case_sets_are_those_of_verify() -> None:
    assert set(CASE_SETS) == set(SETS)


def test_verify(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(SPEC), "--cases", "small", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(row.keys() >= ROW and row["ok"] and row["implementation"] == "reference" for row in rows)
    assert {row["output"] for row in rows} == {"o", "final_state"}
    assert main(["verify", str(SPEC), "--cases", "small", "--case", "T=65"]) == 0
    assert capsys.readouterr().out.endswith("2 within budget, 0 not\n")


def test_verify_finds_nothing_to_do_or_no_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(SPEC), "--case", "no such case"]) == 1
    assert main(["verify", str(SPEC), "--library", str(tmp_path)]) == 2
    assert f"error[E-LIBRARY]: {tmp_path} holds no generated library" in capsys.readouterr().err


def test_verify_where_the_kernels_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    """What was asked for and could not run is a failure, not a skipped row."""
    assert main(["verify", str(SPEC), "--cases", "small", "--case", "T=65", "--impl", "hopper"]) == 1
    assert "q is on cpu" in capsys.readouterr().out


@pytest.mark.slow
def test_simulate(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", str(SPEC), "--kernel", "prepare_tile+forward_v64", "--case", "T=65", "--json"]
    assert main(arguments) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(row.keys() >= ROW and row["ok"] for row in rows)
    modes = {row["implementation"].split(", ")[1] for row in rows}
    assert {"eager", "lazy", "lazy late seed 0", "lazy late seed 1", "late seed 4"} <= modes
    assert len(rows) == 2 * len(modes)


def test_simulate_an_unknown_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(SPEC), "--kernel", "v65"]) == 2
    assert "error[E-KERNEL]: simple_gla has no kernel variant named like v65" in capsys.readouterr().err
