"""The text of kernel files: what it exports, what it says, and that nothing else gets into it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from qlagen.emit.constants import DATA_TYPES, kernel_name
from qlagen.emit.kernel import emit_kernel
from qlagen.emit.parameters import RESERVED
from qlagen.emit.templates import KERNEL_TEMPLATES, template_digest, template_root
from qlagen.errors import QlagenError
from qlagen.program.ir import Apply, Elementwise, Load, Number, Program, Store
from qlagen.schedule.model import Schedule
from tests.emit.kernels import KERNELS, SPEC_DIGEST, constants, emitted, prim_func, schedule_of
from tests.schedule import cases

GATED = ("gated_delta_rule", "forward", "v64")
PREPARE = ("gated_delta_rule", "prepare", "tile")
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids="-".join)


@each_kernel
def test_exports_are_the_contract(kernel: tuple[str, str, str]) -> None:
    schedule, text = schedule_of(kernel), emitted(*kernel)
    exported = constants(text)
    assert exported["NAME"] == "_".join(kernel) == kernel_name(schedule)
    kinds = {"prepare": "chunk_parallel", "segment": "segment", "forward": "carried"}
    assert exported["KIND"] == kinds[schedule.program.name]
    assert exported["DATA_TYPES"] == DATA_TYPES == ("bfloat16", "float16")
    assert exported["VALUE_TILE"] == schedule.options.value_tile
    assert exported["CTAS_PER_SM"] == schedule.options.ctas_per_sm
    assert exported["THREADS"] == schedule.threads
    assert exported["SHARED_BYTES"] == schedule.shared_bytes
    assert exported["PASS_CONFIGS"]["tl.disable_thread_storage_sync"] is True


@each_kernel
def test_parameters_are_tensors_then_scalars_in_exported_order(kernel: tuple[str, str, str]) -> None:
    text = emitted(*kernel)
    exported, function = constants(text), prim_func(text)
    kinds = {a.arg: ast.unparse(a.annotation) for a in function.args.args if a.annotation}
    assert tuple(kinds) == (*exported["TENSORS"], *(name for name, _ in exported["SCALARS"]))
    for name in exported["TENSORS"]:
        assert kinds[name].startswith("T.Tensor")
    for name, kind in exported["SCALARS"]:
        assert kinds[name] == f"T.{kind}"
    shapes = " ".join(kinds[name] for name in exported["TENSORS"])
    assert all(re.search(rf"\b{dimension}\b", shapes) for dimension in exported["DYNAMIC"])


def test_run_time_values_are_no_constants() -> None:
    exported = constants(emitted(*GATED))
    sizes = ("tokens", "key_heads", "value_heads", "sequences", "segments", "joints", "chunk_count")
    assert exported["DYNAMIC"] == sizes
    assert [name for name, _ in exported["SCALARS"]] == [
        "scale",
        "state_key_stride",
        "state_value_stride",
        "has_initial_state",
        "has_final_state",
    ]
    names = ("workers", "has_spare_chunks", "sequences", "wide_offsets")
    assert constants(emitted(*PREPARE))["SCALARS"] == tuple((name, "int32") for name in names)


@each_kernel
def test_every_operation_names_its_stage(kernel: tuple[str, str, str]) -> None:
    schedule, text = schedule_of(kernel), emitted(*kernel)
    steps = [i.step for role in schedule.roles for i in role.body if i.step is not None]
    written = re.findall(r"# spec: (\w+)", text)
    assert sorted(written) == sorted(step.origin for step in steps if step.origin)
    for step in steps:
        assert step.note in text


@each_kernel
def test_instructions_are_spelled_one_for_one(kernel: tuple[str, str, str]) -> None:
    schedule, text = schedule_of(kernel), emitted(*kernel)
    body = [i for role in schedule.roles for i in role.body]
    count = {kind: sum(i.kind == kind for i in body) for kind in ("wait_groups", "sync", "fence")}
    gemms = sum(i.step is not None and i.step.kind == "gemm" for i in body)
    inverses = sum(i.step is not None and i.step.kind == "inverse" for i in body)
    cut = len(re.findall(r"^\s+\w+_landed = ", text, re.MULTILINE))
    assert len(re.findall(r"T\.wgmma_gemm\(", text)) == gemms
    assert len(re.findall(r"T\.wait_wgmma\(", text)) == count["wait_groups"]
    cleared = len(re.findall(r"which no iteration writes", text))
    assert len(re.findall(r"T\.sync_threads\(", text)) == count["sync"] + 2 * inverses + cleared
    assert len(re.findall(r"T\.fence_proxy_async\(", text)) == count["fence"] + cut


@each_kernel
def test_named_constants_are_all_used(kernel: tuple[str, str, str]) -> None:
    text = emitted(*kernel)
    exports = {
        "NAME",
        "KIND",
        "TENSORS",
        "SCALARS",
        "DATA_TYPES",
        "CTAS_PER_SM",
        "SHARED_BYTES",
        "PASS_CONFIGS",
        "ITEM_HEADS",
    }
    for name in re.findall(r"^([A-Z][A-Z0-9_]*) = ", text, re.MULTILINE):
        assert name in exports | {"VALUE_TILE"} or len(re.findall(rf"\b{name}\b", text)) > 1, name


@each_kernel
def test_a_kernel_file_is_plain(kernel: tuple[str, str, str]) -> None:
    text = emitted(*kernel)
    imports = [ast.unparse(n) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert imports == ["import tilelang", "import tilelang.language as T"]
    assert text.endswith("\n")
    assert not re.search(r"[ \t]+$", text, re.MULTILINE)
    assert "\n\n\n\n" not in text


def test_emission_is_the_same_in_every_process() -> None:
    code = (
        "import hashlib; from tests.emit.kernels import KERNELS, emitted;"
        "print(hashlib.sha256(''.join(emitted(*k) for k in KERNELS).encode()).hexdigest())"
    )
    root = Path(__file__).parents[2]
    digests = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        digests.add(done.stdout)
    assert len(digests) == 1


def test_the_banner_says_where_the_text_comes_from() -> None:
    text = emitted(*GATED)
    head = text[: text.index('"""', 3)]
    assert SPEC_DIGEST in head
    assert template_digest() in head
    assert "variant v64: value tile 64, 4 load stages" in head
    assert "state                threads 0..127    240 registers" in head
    schedule = schedule_of(GATED)
    for barrier in schedule.barriers:
        assert re.search(rf"^  {barrier.name} +\w+_STAGES +{barrier.count} by ", head, re.MULTILINE)
    for ring in schedule.rings:
        assert re.search(rf"^  {ring.name}_ring .* {ring.bytes} bytes", head, re.MULTILINE)
    assert emit_kernel(schedule, "another") != text


def test_templates_and_emitter_know_no_operator() -> None:
    root = template_root()
    sources = [root / name for name in KERNEL_TEMPLATES]
    sources += sorted((Path(__file__).parents[2] / "qlagen" / "emit").glob("*.py"))
    for source in sources:
        text = source.read_text(encoding="utf-8").lower()
        for word in ("delta_rule", "delta rule", "gla", "gdn", "kda", "mamba", "simple_"):
            assert word not in text, f"{source.name}: {word}"


def with_sum(program: Program, name: str) -> Program:
    """The program with a sum instead of an elementwise operation's difference."""
    changed = next(o for o in program.operations if o.name == name)
    assert isinstance(changed, Elementwise)
    assert isinstance(changed.expr, Apply)
    assert changed.expr.operator == "sub"
    other = replace(changed, expr=replace(changed.expr, operator="add"))
    return replace(program, operations=tuple(other if o is changed else o for o in program.operations))


def test_an_expression_changes_the_text_where_it_is_spelled() -> None:
    program = with_sum(cases.program("gated_delta_rule", "forward"), "Vn_right")
    text = emit_kernel(cases.build(program, "v64"), SPEC_DIGEST)
    row = re.compile(r"Vn_right_r\[row, column\] = \(\n(.*?)\n +\)", re.DOTALL)
    before, after = row.search(emitted(*GATED)), row.search(text)
    assert before
    assert after
    squeezed = [" ".join(match[1].split()) for match in (before, after)]
    product = "k_S_r[row, column] * g_from_start_ring[step % HANDOVER_STAGES, column]"
    assert squeezed == [f"v_f_r[column, row] - {product}", f"v_f_r[column, row] + {product}"]


def test_coefficients_are_written_as_numbers() -> None:
    program = cases.program("delta_rule", "prepare")
    operations = tuple(
        replace(o, expr=Apply("mul", o.expr, Number(-2))) if isinstance(o, Elementwise) else o
        for o in program.operations
    )
    text = emit_kernel(cases.build(replace(program, operations=operations), "single"), SPEC_DIGEST)
    assert " * (-2.0)" in text


def test_masks_select_by_index_and_never_multiply() -> None:
    decayed = emitted(*GATED)
    assert "decay::multiply" in decayed
    assert "row >= column ? entries[0]" in decayed
    assert "MINUS_INFINITY" not in decayed
    unmasked = emitted("delta_rule", "forward", "v64")
    assert re.search(r"T\.if_then_else\(row >= column, \w+_r\[row, column\].*, 0\.0\)", unmasked)


def test_what_only_an_inverse_reads_needs_no_mask_and_no_blocks_above_the_diagonal() -> None:
    for operator in ("gated_delta_rule", "delta_rule"):
        text = emitted(operator, "prepare", "single")
        assert "if part <= warp:" in text
        assert "if_then_else(row >" not in text
    for kernel in KERNELS:
        assert "1.0, 0.0) *" not in emitted(*kernel)


def renamed_input(schedule: Schedule, name: str) -> Schedule:
    def operation(o: object) -> object:
        return replace(o, tensor=replace(o.tensor, name=name)) if isinstance(o, Load) and o.name == "v" else o

    program = replace(schedule.program, operations=tuple(map(operation, schedule.program.operations)))  # type: ignore[arg-type]
    return replace(schedule, program=program)


@pytest.mark.parametrize("name", ["lane", "do", "lambda", "VALUE_TILE", "workers"])
def test_an_input_may_not_take_a_name_of_the_kernel(name: str) -> None:
    with pytest.raises(QlagenError, match="cannot name a tensor or scalar") as caught:
        emit_kernel(renamed_input(schedule_of(GATED), name), SPEC_DIGEST)
    assert caught.value.code == "E-EMIT-NAME"
    assert caught.value.message == (f"{name!r} cannot name a tensor or scalar of a kernel: the kernel's text uses it")
    assert f"{name}_in" in caught.value.hints[0]


def test_two_parameters_may_not_share_a_name() -> None:
    with pytest.raises(QlagenError, match="two parameters called 'k'"):
        emit_kernel(renamed_input(schedule_of(GATED), "k"), SPEC_DIGEST)


def test_every_name_that_a_kernel_uses_is_reserved() -> None:
    """Otherwise an input of that name would silently mean something else in the text."""
    for kernel in KERNELS:
        schedule, function = schedule_of(kernel), prim_func(emitted(*kernel))
        own = {ring.name for ring in schedule.rings} | {fragment.name for fragment in schedule.fragments}
        bound = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        made = re.compile(r".*(_ring|_ready|_free|_landed|_r|_rows|_columns|_last|_next)$")
        unknown = {name for name in bound if name not in RESERVED | own and not made.match(name)}
        assert not unknown


def test_a_chunk_parallel_kernel_cannot_store_by_token() -> None:
    schedule = schedule_of(("gated_delta_rule", "prepare", "tile"))
    stores = tuple(Store(replace(s.tensor, layout="token"), s.value) for s in schedule.program.stores)
    with pytest.raises(QlagenError, match="stores a by token") as caught:
        emit_kernel(replace(schedule, program=replace(schedule.program, stores=stores)), SPEC_DIGEST)
    assert caught.value.hints == ("store it padded to whole chunks",)
