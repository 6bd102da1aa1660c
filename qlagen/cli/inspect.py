"""``qlagen explain`` and ``qlagen show``: what the compiler decided, and its stages as text."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from qlagen.algebra.cache import derive_backward_cached, derive_cached
from qlagen.algebra.derivation import Derivation
from qlagen.algebra.plots import draw_pareto
from qlagen.algebra.report import make_report, report_json, report_latex, report_text
from qlagen.algebra.show import show_derivation
from qlagen.algebra.target import load_throughput
from qlagen.cli.output import print_json, print_lines, progress
from qlagen.emit.kernel import emit_kernel
from qlagen.emit.portable import emit_portable
from qlagen.errors import QlagenError, did_you_mean
from qlagen.package.compile import DIGEST_LENGTH, load_schedules, schedule_plan
from qlagen.program.ir import Plan
from qlagen.program.kernels import UNSUPPORTED
from qlagen.program.plan import build_plan, plan_programs
from qlagen.program.show import show_program
from qlagen.schedule.model import Schedule
from qlagen.schedule.show import show_schedule
from qlagen.spec.load import load_spec
from qlagen.spec.model import OpSpec
from qlagen.spec.show import show_spec


def run(options: argparse.Namespace) -> int:
    """0, or a QlagenError."""
    with progress(options.command) as say:
        spec = load_spec(options.specs[0])
        if options.command == "explain":
            value, text = explain(spec, options, say)
        else:
            text = show(spec, options, say)
            value = {"spec": spec.name, "stage": options.stage, "text": text}
    if options.json:
        print_json(value)
    else:
        print_lines(text)
    return 0


def explain(
    spec: OpSpec, options: argparse.Namespace, say: Callable[[str], None] = lambda _: None
) -> tuple[dict[str, Any], str]:
    """The report on an operator's algebra, for tools and for people; writes the plot that is asked for."""
    say(f"deriving {spec.name}")
    backward = derive_backward_cached(spec) if options.backward else None
    derivation = derive_cached(spec) if backward is None else backward.forward
    say(f"exploring {spec.name}")
    report = make_report(derivation, backward, group=options.group, facts=load_throughput(options.target))
    if options.plot is not None:
        draw_pareto(report, options.plot)
    return report_json(report), report_latex(report) if options.latex else report_text(report)


def show(spec: OpSpec, options: argparse.Namespace, say: Callable[[str], None] = lambda _: None) -> str:
    """The text form of one stage; of the stages before it no more is done than needed."""
    if options.stage == "spec":
        return show_spec(spec)
    say(f"deriving {spec.name}")
    derivation = derive_cached(spec)
    if options.stage == "algebra":
        return show_derivation(derivation)
    if options.stage == "portable":
        return emit_portable(derivation)
    if options.stage == "program":
        return show_program(_plan(derivation))
    plan = build_plan(derivation)
    say(f"scheduling {spec.name}")
    schedules = load_schedules(spec, options.target, options.schedules)
    scheduled = schedule_plan(plan, options.target, schedules)
    chosen = _choose(itertools.chain.from_iterable(scheduled), options.kernel)
    if options.stage == "schedule":
        return "\n".join(show_schedule(schedule).rstrip("\n") + "\n" for schedule in chosen)
    digest = spec.digest[:DIGEST_LENGTH]
    return "\n\n".join(emit_kernel(schedule, digest, options.target) for schedule in chosen)


def _plan(derivation: Derivation) -> Plan:
    """The kernels of an operator, or the programs of its portable implementation where kernels cannot run it."""
    try:
        return build_plan(derivation)
    except QlagenError as error:
        if error.code != UNSUPPORTED:
            raise
        return plan_programs(derivation)


def _choose(schedules: Iterable[Schedule], kernel: str | None) -> list[Schedule]:
    """All schedules, or the one that is named. Raises E-KERNEL for another name."""
    named = {f"{item.program.name}_{item.options.name}": item for item in schedules}
    if kernel is None:
        return list(named.values())
    if kernel not in named:
        notes = [f"kernels: {', '.join(named)}"]
        raise QlagenError("E-KERNEL", f"there is no kernel {kernel!r}", notes=notes, hints=did_you_mean(kernel, named))
    return [named[kernel]]
