"""``qlagen check``: parse, type and prove every spec, and say which are wrong and where."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from qlagen.algebra.build import build_form
from qlagen.algebra.derivation import Proof
from qlagen.algebra.prove import prove
from qlagen.cli.output import print_json, progress, spec_paths
from qlagen.cli.status import OK, status_of
from qlagen.errors import QlagenError
from qlagen.spec.load import load_spec


@dataclass(frozen=True)
class Verdict:
    """On one spec file."""

    file: Path
    name: str
    """The spec's name, or the file's when it could not be read."""
    proof: Proof | None
    fault: QlagenError | None


def run(options: argparse.Namespace) -> int:
    """0 when every spec is proven, 1 when a proof fails, 2 when a spec cannot be read."""
    verdicts = []
    with progress("checking") as say:
        for path in spec_paths(options.specs):
            say(f"checking {path}")
            verdicts.append(check_spec(path))
            if not options.json:
                _print(verdicts[-1])
    if options.json:
        print_json([as_record(verdict) for verdict in verdicts])
    return max((status_of(verdict.fault) for verdict in verdicts if verdict.fault), default=OK)


def check_spec(path: Path) -> Verdict:
    """Every chunk length of one spec, proven."""
    name = path.stem
    try:
        spec = load_spec(path)
        name = spec.name
        proofs = [prove(spec, build_form(spec), chunk=chunk) for chunk in spec.chunk]
    except QlagenError as fault:
        return Verdict(path, name, None, fault)
    return Verdict(path, name, max(proofs, key=lambda proof: proof.bound), None)


def as_record(verdict: Verdict) -> dict[str, object]:
    """The JSON form: {spec, file, ok, proof_bound, errors}."""
    return {
        "spec": verdict.name,
        "file": str(verdict.file),
        "ok": verdict.fault is None,
        "proof_bound": None if verdict.proof is None else verdict.proof.bound,
        "errors": [] if verdict.fault is None else [_error(verdict.fault)],
    }


def _error(fault: QlagenError) -> dict[str, object]:
    span = fault.span
    return {
        "code": fault.code,
        "file": span.file if span else None,
        "line": span.line if span else None,
        "column": span.column if span else None,
        "message": fault.message,
    }


def _print(verdict: Verdict) -> None:
    if verdict.fault is not None:
        print(f"{verdict.name}: FAILED ({verdict.fault.code})", flush=True)
        print(verdict.fault.render(), file=sys.stderr, flush=True)
        return
    proof = verdict.proof
    assert proof is not None
    sizes = f"C = {proof.chunk}, K = {proof.key_dim}, V = {proof.value_dim}"
    print(f"{verdict.name}: ok, stages equal the recurrence at {sizes} (wrong with probability < {proof.bound:.1e})")
