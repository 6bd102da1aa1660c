"""Derivations kept in the repository, so that a build need not search: one JSON file per spec, in `derived` beside it.

A file counts only for the spec text and for the compiler that it was made by: its key has the SHA-256 of the spec and
that of the sources that decide what a derivation is (expressions, rules, costs, searches, proofs). Anything else is
derived anew; `tools/derive.py` rewrites the files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from qlagen.algebra.backward import BackwardForm, build_backward
from qlagen.algebra.build import build_form
from qlagen.algebra.derivation import Cost, Derivation, Form, Proof, Refusal, Step
from qlagen.algebra.derive import derive
from qlagen.algebra.derive_backward import BackwardDerivation, derive_backward, inverses
from qlagen.algebra.ir import Node, Op, topological
from qlagen.algebra.node import make_node
from qlagen.errors import QlagenError
from qlagen.spec.model import OpSpec

FOLDER = "derived"
PRESENTATION = (
    "__init__.py",
    "cache.py",
    "codes.py",
    "context_parallel.py",
    "explain.py",
    "explore.py",
    "kernel_plans.py",
    "latex.py",
    "listing.py",
    "plots.py",
    "report.py",
    "rounding.py",
    "segment.py",
    "share_heads.py",
    "show.py",
    "stacking.py",
)
"""Sources that no derivation depends on."""


def derive_cached(spec: OpSpec, folder: Path | None = None) -> Derivation:
    """`derive` at the spec's first chunk length, read from the repository when it is there. Raises as `derive` does."""
    stored = read_record(spec, folder)
    return derive(spec) if stored is None else _read_forward(spec, stored)


def derive_backward_cached(spec: OpSpec, folder: Path | None = None) -> BackwardDerivation:
    """`derive_backward` of `derive_cached`, read from the repository when it is there. Raises E-GRAD when the spec
    differentiates nothing, and as `derive` and `derive_backward` do."""
    if not spec.gradients:
        raise QlagenError("E-GRAD", f"{spec.name} has no backward pass: [grad] names nothing")
    stored = read_record(spec, folder)
    if stored is None or stored["backward"] is None:
        return derive_backward(derive_cached(spec, folder))
    return _read_backward(_read_forward(spec, stored), stored)


def read_record(spec: OpSpec, folder: Path | None = None) -> dict[str, Any] | None:
    """What the repository has for a spec, or None when that is nothing, or made from other sources."""
    path = record_path(spec, folder)
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    if not isinstance(record, dict) or record.get("key") != record_key(spec):
        return None
    return record


def record_path(spec: OpSpec, folder: Path | None = None) -> Path:
    """The file of a spec: in `folder`, by default `FOLDER` beside the spec's own file."""
    return (Path(spec.file).parent / FOLDER if folder is None else folder) / f"{spec.name}.json"


def record_key(spec: OpSpec) -> dict[str, str]:
    """What a record must have been made from."""
    return {"spec": spec.digest, "engine": engine_digest()}


@cache
def engine_digest() -> str:
    """SHA-256 of the sources on which derivations depend."""
    folder = resources.files("qlagen.algebra")
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".py") and f.name not in PRESENTATION)
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0{folder.joinpath(name).read_text(encoding='utf-8')}\0".encode())
    return digest.hexdigest()


def make_record(spec: OpSpec) -> str:
    """The text of a spec's file; derives everything."""
    forward = derive(spec)
    backward = derive_backward(forward) if spec.gradients else None
    roots = [forward.chosen.output, forward.chosen.state, *(node for _, node in forward.chosen.stages)]
    if backward is not None:
        roots += [*backward.chosen.roots, *(node for _, node in backward.chosen.stages)]
    nodes = topological(roots)
    place = {node: number for number, node in enumerate(nodes)}
    record = {
        "key": record_key(spec),
        "forward": _forward_record(forward, place),
        "backward": None if backward is None else _backward_record(backward, place),
    }
    table = ",\n".join(
        json.dumps([n.op, [place[a] for a in n.args], n.shape, n.value, n.coefficients], separators=(",", ":"))
        for n in nodes
    )
    return json.dumps(record, indent=1)[:-2] + f',\n "nodes": [\n{table}\n ]\n}}\n'


def _forward_record(derivation: Derivation, place: dict[Node, int]) -> dict[str, Any]:
    return {
        "output": place[derivation.chosen.output],
        "state": place[derivation.chosen.state],
        "stages": [[name, place[node]] for name, node in derivation.chosen.stages],
        "steps": [asdict(step) for step in derivation.steps],
        "textbook_cost": asdict(derivation.textbook_cost),
        "chosen_cost": asdict(derivation.chosen_cost),
        "proof": asdict(derivation.proof),
        "refusals": [asdict(refusal) for refusal in derivation.refusals],
    }


def _backward_record(derivation: BackwardDerivation, place: dict[Node, int]) -> dict[str, Any]:
    return {
        "gradients": [[name, place[node]] for name, node in derivation.chosen.gradients],
        "state": place[derivation.chosen.state],
        "stages": [[name, place[node]] for name, node in derivation.chosen.stages],
        "steps": [asdict(step) for step in derivation.steps],
        "textbook_cost": asdict(derivation.textbook_cost),
        "start_cost": asdict(derivation.start_cost),
        "chosen_cost": asdict(derivation.chosen_cost),
        "proof": asdict(derivation.proof),
    }


def _read_nodes(table: Iterable[Sequence[Any]]) -> list[Node]:
    nodes: list[Node] = []
    for op, args, shape, value, coefficients in table:
        if op not in get_args(Op):
            raise ValueError(f"{op} in a stored derivation")
        arguments = tuple(nodes[a] for a in args)
        nodes.append(make_node(op, arguments, (shape[0], shape[1]), value, tuple(coefficients)))
    return nodes


def _read_steps(steps: Iterable[dict[str, Any]]) -> tuple[Step, ...]:
    return tuple(Step(s["rule"], s["before"], s["after"], Cost(**s["cost"])) for s in steps)


def _read_forward(spec: OpSpec, record: dict[str, Any]) -> Derivation:
    nodes, stored = _read_nodes(record["nodes"]), record["forward"]
    stages = tuple((name, nodes[number]) for name, number in stored["stages"])
    return Derivation(
        spec=spec,
        textbook=build_form(spec),
        chosen=Form(nodes[stored["output"]], nodes[stored["state"]], stages),
        steps=_read_steps(stored["steps"]),
        textbook_cost=Cost(**stored["textbook_cost"]),
        chosen_cost=Cost(**stored["chosen_cost"]),
        proof=Proof(**stored["proof"]),
        refusals=tuple(Refusal(**refusal) for refusal in stored["refusals"]),
    )


def _read_backward(forward: Derivation, record: dict[str, Any]) -> BackwardDerivation:
    nodes, stored = _read_nodes(record["nodes"]), record["backward"]
    start = build_backward(forward.spec, forward.chosen)
    gradients, stages = (tuple((n, nodes[i]) for n, i in stored[key]) for key in ("gradients", "stages"))
    return BackwardDerivation(
        forward=forward,
        textbook=build_backward(forward.spec, forward.textbook),
        start=start,
        chosen=BackwardForm(start.output_seed, start.state_seed, gradients, nodes[stored["state"]], stages),
        saved=inverses(start.roots),
        steps=_read_steps(stored["steps"]),
        textbook_cost=Cost(**stored["textbook_cost"]),
        start_cost=Cost(**stored["start_cost"]),
        chosen_cost=Cost(**stored["chosen_cost"]),
        proof=Proof(**stored["proof"]),
    )
