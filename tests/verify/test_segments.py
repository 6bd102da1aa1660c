"""Kernels that walk segments of sequences, in the emulator: what a segment leaves, its map, and what joins them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest
import torch

from qlagen.algebra.build import build_form
from qlagen.algebra.evaluate import evaluate
from qlagen.algebra.fields import Float64
from qlagen.algebra.segment import SegmentMap, compose, full_map, segment_map
from qlagen.emit.kernel import emit_kernel
from qlagen.emit.load import load_kernel
from qlagen.verify.emulator import Mode
from qlagen.verify.segments import Sequences, even_cuts, join_segments
from qlagen.verify.simulate import UNTOUCHED, Call, EmulatedOperator
from tests.schedule import cases

Array = npt.NDArray[np.float64]
CHUNK, KEYS, VALUES, HEADS, KEY_HEADS = 64, 64, 128, 4, 2
"""Two tiles of values and one of the map."""
LENGTHS = (5 * CHUNK + 7, 0, 2 * CHUNK, 4 * CHUNK, 1)
CUTS = ((2, 3, 5), (), (1,), (2,), ())
UNUSED, SCALE, EXACT = 2, 0.125, float("-inf")
MODES = (Mode(), Mode(lazy=True, late=True, seed=1))
FORMS = [("gated_delta_rule", 1), ("gated_delta_rule", 2), ("delta_rule", 1), ("delta_rule", 2), ("simple_gla", 1)]
Edit = Callable[[str], str]


@cache
def text(operator: str, program: str, form: int = 0) -> str:
    found = cases.segment_form(operator, form) if form else cases.program(operator, program)
    dims = {"C": CHUNK, "K": KEYS, "V": VALUES}
    schedule = cases.build(
        found, "tile" if found.carry is None else "v64", dims, value_tile=64 if found.carry else VALUES
    )
    return emit_kernel(schedule, "test")


def modules(operator: str, form: int, folder: Path, programs: str, edit: Edit = str) -> list[ModuleType]:
    """The kernels that `programs` names, of which `edit` changes those that make or walk segments."""
    loaded = []
    for name in programs.split():
        own = text(operator, name, form if name == "segment" else 0)
        file = folder / f"{operator}_{name}_{form}.py"
        file.write_text(own if name == "prepare" else edit(own), encoding="utf-8")
        loaded.append(load_kernel(file))
    return loaded


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int, str], EmulatedOperator]:
    @cache
    def built(operator: str, form: int, programs: str) -> EmulatedOperator:
        return EmulatedOperator(modules(operator, form, tmp_path_factory.mktemp("kernels"), programs), "bfloat16")

    return built


def arguments(operator: str, decay: float = 1 / 16) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tokens = sum(LENGTHS) + 3
    q, k = (torch.nn.functional.normalize(torch.randn(tokens, KEY_HEADS, KEYS), dim=-1) for _ in range(2))
    made = {
        "q": q.bfloat16(),
        "k": k.bfloat16(),
        "v": torch.randn(tokens, HEADS, VALUES).bfloat16(),
        "g": torch.nn.functional.logsigmoid(torch.randn(tokens, HEADS)) * decay,
        "beta": 2 * torch.rand(tokens, HEADS),
    }
    names = {item.name for item in cases.spec(operator).inputs}
    return {name: tensor for name, tensor in made.items() if name in names}


def call(operator: str, decay: float = 1 / 16, value_first: bool = False, **options: object) -> Call:
    torch.manual_seed(1)
    state = torch.randn(len(LENGTHS), HEADS, KEYS, VALUES)
    given = state.transpose(-1, -2).contiguous() if value_first else state
    offsets = (0, *np.cumsum(LENGTHS).tolist())
    numbers = {"scale": SCALE}
    made = Call(arguments(operator, decay), numbers, offsets, HEADS, (KEYS, VALUES), given, value_first, CUTS, UNUSED)
    return replace(made, **options)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Oracle:
    """Maps of chunks in float64."""

    operator: str
    call: Call

    def chunk(self, start: int, head: int) -> tuple[Array, Array]:
        """M and B of the chunk that starts at a token."""
        spec = cases.spec(self.operator)
        found = segment_map(build_form(spec).state, spec.state)
        assert isinstance(found, SegmentMap)
        env = {}
        for item in spec.inputs:
            if item.heads == "none":
                continue
            own = self.call.tensors[item.name][start : start + CHUNK].double().numpy()
            own = own[:, head if item.heads == "value" else head * KEY_HEADS // HEADS].reshape(CHUNK, -1)
            env[item.chunk_symbol] = np.cumsum(own, axis=0) if item.role == "log_gate" else own
        sizes = {"1": 1, "C": CHUNK, "K": KEYS, "V": VALUES}
        diagonal, rest, write = evaluate((found.diagonal, found.rest, found.write), env, CHUNK, Float64(), sizes=sizes)
        return full_map(diagonal, rest), write

    def segment(self, first: int, end: int, head: int) -> tuple[Array, Array]:
        maps = (np.eye(KEYS), np.zeros((KEYS, VALUES)))
        for start in range(first, end, CHUNK):
            maps = compose(maps, self.chunk(start, head))
        return maps


@dataclass(frozen=True)
class Joint:
    """A segment that another one of its sequence follows."""

    row: int
    sequence: int
    opens: bool
    first: int
    end: int


def joints(of: Call) -> list[Joint]:
    tables = Sequences(tuple(of.offsets), CHUNK, of.cuts, of.unused).tables(int(of.offsets[-1]))
    numbers, offsets = tables["segment_sequence"], tables["segment_offsets"]
    found = []
    for segment, (own, after) in enumerate(pairwise(numbers)):
        if own >= 0 and own == after:
            opens = segment == 0 or numbers[segment - 1] != own
            found.append(Joint(len(found), own, opens, offsets[segment], offsets[segment + 1]))
    return found


def error(got: object, wanted: Array) -> float:
    return float(np.linalg.norm(np.asarray(got, dtype=np.float64) - wanted) / np.linalg.norm(wanted))


def rows(buffers: dict[str, torch.Tensor]) -> Array:
    """[joints, heads, V + K, K]"""
    state = buffers["segment_state"]
    return np.asarray(state.view(*state.shape[:2], VALUES + KEYS, KEYS).double().numpy())


def check_made(operator: str, of: Call, buffers: dict[str, torch.Tensor]) -> None:
    """Every joint, when no map is left out: its state, its map where it has one, and nothing else."""
    made, oracle, found = rows(buffers), Oracle(operator, of), joints(of)
    given = of.initial_state.transpose(-1, -2) if of.value_first else of.initial_state
    for joint in found:
        for head in range(HEADS):
            matrix, write = oracle.segment(joint.first, joint.end, head)
            start = given[joint.sequence, head].double().numpy() if joint.opens else np.zeros_like(write)
            assert error(made[joint.row, head, :VALUES], (matrix @ start + write).T) < 7e-3
            assert int(buffers["segment_joined"][joint.row, head]) == (not joint.opens)
            if joint.opens:
                assert np.isnan(made[joint.row, head, VALUES:]).all()
            else:
                assert error(made[joint.row, head, VALUES:], matrix.T) < 1.2e-2
    assert len(made) == len(found) + UNUSED
    assert np.isnan(made[len(found) :]).all()
    assert (buffers["segment_joined"][len(found) :] == UNTOUCHED).all()


@pytest.mark.parametrize(("operator", "form"), FORMS)
def test_states_and_maps(operators: Callable[..., EmulatedOperator], operator: str, form: int) -> None:
    run = operators(operator, form, "prepare segment")
    first = None
    for mode in MODES:
        for value_first in (False, True):
            of = call(operator, value_first=value_first, skip_threshold=EXACT)
            buffers = run(of, mode)
            first = buffers["segment_state"] if first is None else first
            assert torch.equal(buffers["segment_state"].nan_to_num(), first.nan_to_num())
    check_made(operator, of, buffers)


def test_without_an_initial_state_a_segment_starts_from_zero(operators: Callable[..., EmulatedOperator]) -> None:
    run = operators("gated_delta_rule", 1, "prepare segment")
    none = run(call("gated_delta_rule", initial_state=None, skip_threshold=EXACT))
    zero = run(call("gated_delta_rule", initial_state=torch.zeros(len(LENGTHS), HEADS, KEYS, VALUES)))
    assert torch.equal(none["segment_state"].nan_to_num(), zero["segment_state"].nan_to_num())


def warm_up_of(of: Call, joint: Joint, head: int) -> int:
    """How many of a segment's last chunks decay by the threshold; 0 where all of them do not."""
    gates = of.tensors["g"][joint.first : joint.end, head].double().numpy().reshape(-1, CHUNK).sum(axis=1)
    return next((n for n in range(1, len(gates) + 1) if gates[-n:].sum() <= of.skip_threshold), 0)


def check_forgotten(of: Call, buffers: dict[str, torch.Tensor]) -> None:
    """Joints whose last chunks decay by the threshold have the state that these reach from zero, and no map."""
    made, oracle = rows(buffers), Oracle("gated_delta_rule", of)
    given = of.initial_state.double().numpy()
    reached = 0
    for joint in joints(of):
        for head in range(HEADS):
            warm_up = warm_up_of(of, joint, head)
            start = joint.end - warm_up * CHUNK if warm_up else joint.first
            matrix, write = oracle.segment(start, joint.end, head)
            exact, joined = write, not warm_up and not joint.opens
            if joint.opens and not warm_up:
                exact = matrix @ given[joint.sequence, head] + write
            assert error(made[joint.row, head, :VALUES], exact.T) < 7e-3
            assert bool(buffers["segment_joined"][joint.row, head]) == joined
            assert np.isnan(made[joint.row, head, VALUES:]).all() != joined
            assert np.linalg.norm(matrix, 2) <= np.exp(of.skip_threshold) or not warm_up
            reached += warm_up > 0
    assert reached > 0


def test_what_is_forgotten_is_left_out(operators: Callable[..., EmulatedOperator]) -> None:
    """Chunks decay by about 2: a segment needs one or two of its last chunks, or all of them and a map."""
    run = operators("gated_delta_rule", 1, "prepare segment")
    for threshold in (-1.5, -3.0, -4.0):
        of = call("gated_delta_rule", 1 / 24, skip_threshold=threshold)
        check_forgotten(of, run(of, MODES[1]))


@pytest.mark.parametrize("threshold", [EXACT, -1.5, -3.0])
def test_in_two_turns_whole_segments_come_first(operators: Callable[..., EmulatedOperator], threshold: float) -> None:
    check_turns(operators("gated_delta_rule", 1, "prepare segment"), threshold)


def check_turns(run: EmulatedOperator, threshold: float) -> None:
    """Both turns make what one makes; the first half of the CTAs all that is walked as a whole, and nothing else."""
    of = call("gated_delta_rule", 1 / 24, skip_threshold=threshold)
    once, twice = run(of), run(replace(of, turns=2))
    for name in ("segment_state", "segment_joined"):
        assert torch.equal(once[name].nan_to_num(), twice[name].nan_to_num())
    module, kernel = run.modules[1], run.kernels[1]
    half = module.TILES * HEADS * len(once["segment_sequence"])
    numbers = {"state_key_stride": VALUES, "state_value_stride": 1, "has_initial_state": 1}
    given = {name: once[name] for name in module.TENSORS}
    given |= {name: torch.full_like(once[name], UNTOUCHED) for name in ("segment_state", "segment_joined")}
    kernel.run({**given, **numbers, "skip_threshold": threshold, "turns": 2}, blocks=[(i, 0, 0) for i in range(half)])
    for joint in joints(of):
        for head in range(HEADS):
            made = [given[name][joint.row, head] for name in ("segment_state", "segment_joined")]
            expected = [once[name][joint.row, head] for name in ("segment_state", "segment_joined")]
            if warm_up_of(of, joint, head):
                assert all((one == UNTOUCHED).all() for one in made)
                continue
            reached = slice(0, (VALUES if joint.opens else VALUES + KEYS) * KEYS)
            assert torch.equal(made[0][reached], expected[0][reached])
            assert torch.equal(made[1], expected[1])


WHOLE = "prepare segment forward"


def check_whole(operator: str, run: EmulatedOperator, threshold: float = -10.0, budget: float = 4e-3) -> None:
    """Cut sequences give what whole ones give."""
    whole = run(call(operator, cuts=(), unused=0))
    cut = run(call(operator, skip_threshold=threshold), MODES[1])
    end = sum(LENGTHS)
    assert error(cut["o"][:end].double(), whole["o"][:end].double().numpy()) < budget
    assert error(cut["final_state"], whole["final_state"].double().numpy()) < budget
    assert not cut["o"][end:].any()


@pytest.mark.parametrize(("operator", "form", "threshold"), [(*form, EXACT) for form in FORMS] + [(*FORMS[1], -7.0)])
def test_whole_forward(operators: Callable[..., EmulatedOperator], operator: str, form: int, threshold: float) -> None:
    check_whole(operator, operators(operator, form, WHOLE), threshold, 6e-3 if operator == "delta_rule" else 4e-3)


def test_a_walk_starts_in_the_middle(operators: Callable[..., EmulatedOperator]) -> None:
    """From the float64 states between segments."""
    run, of = operators("gated_delta_rule", 0, "prepare forward"), call("gated_delta_rule")
    oracle = Oracle("gated_delta_rule", of)
    states = torch.full((len(joints(of)) + UNUSED, HEADS, VALUES + KEYS, KEYS), float("nan"))
    for joint in joints(of):
        for head in range(HEADS):
            matrix, write = oracle.segment(int(of.offsets[joint.sequence]), joint.end, head)
            reached = matrix @ of.initial_state[joint.sequence, head].double().numpy() + write
            states[joint.row, head, :VALUES] = torch.from_numpy(reached.T)
    given = replace(of, tensors={**of.tensors, "segment_state": states.flatten(2)})
    whole = run(call("gated_delta_rule", cuts=(), unused=0))
    for mode in MODES:
        cut = run(given, mode)
        assert error(cut["o"].double(), whole["o"].double().numpy()) < 3e-3
        assert error(cut["final_state"], whole["final_state"].double().numpy()) < 3e-3


MUTANTS: dict[str, tuple[str, str]] = {
    "no identity": ("VALUE_DIM == column, 1.0, 0.0)", "VALUE_DIM == column, 0.0, 0.0)"),
    "joined turned round": ("value_head] = joined", "value_head] = 1 - joined"),
    "a chunk too few": ("return done + __ffs(reached);", "return done + __ffs(reached) - 1;"),
    "no chunk left out": ("first = first + (chunks - iterations) * CHUNK", "first = first + 0 * iterations"),
    "a map from the given state": ("if value_column >= VALUE_DIM:", "if value_column > VALUE_DIM:"),
    "the last segment too": ("T.And(closes == 0, T.Or(value_column", "T.And(closes >= 0, T.Or(value_column"),
    "turns turned round": ("T.if_then_else(warm_up > 0, 1, 0)", "T.if_then_else(warm_up > 0, 0, 1)"),
    "all of it in both turns": ("T.Or(turns == 1,", "T.Or(turns >= 1,"),
    "another segment's row": ("segment_state[segment - sequence,", "segment_state[T.max(segment - sequence - 1, 0),"),
    "the state of another segment": ("segment - 1 - sequence, value_head", "segment - sequence, value_head"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(tmp_path: Path, name: str) -> None:
    old, new = MUTANTS[name]
    assert any(old in text("gated_delta_rule", program, form) for program, form in (("segment", 1), ("forward", 0)))
    edit: Edit = lambda own: own.replace(old, new)  # noqa: E731
    run = EmulatedOperator(modules("gated_delta_rule", 1, tmp_path, WHOLE, edit), "bfloat16")
    checks: Sequence[Callable[[], None]] = (
        lambda: check_whole("gated_delta_rule", run, EXACT),
        lambda: check_made_raw(run, EXACT),
        lambda: check_made_raw(run, -1.5),
        lambda: check_made_raw(run, -3.0),
        lambda: check_turns(run, -3.0),
    )
    assert any(fails(check) for check in checks)


def check_made_raw(run: EmulatedOperator, threshold: float) -> None:
    """What the segment kernel alone leaves."""
    alone = object.__new__(EmulatedOperator)
    alone.modules, alone.kernels, alone.data_type = run.modules[:2], run.kernels[:2], run.data_type
    of = call("gated_delta_rule", 1 / 24, skip_threshold=threshold)
    buffers = alone(of)
    if threshold == EXACT:
        check_made("gated_delta_rule", of, buffers)
    else:
        check_forgotten(of, buffers)


def fails(check: Callable[[], None]) -> bool:
    try:
        check()
    except Exception:
        return True
    return False


def test_tables_of_cut_sequences() -> None:
    tables = Sequences((0, 130, 130, 300), 64, ((1,), (), (1, 2)), 1).tables(400)
    assert tables["segment_sequence"] == [0, 0, 1, 2, 2, 2, -1]
    assert tables["segment_offsets"] == [0, 64, 130, 130, 194, 258, 300, 300]
    assert tables["segment_chunks"] == [0, 1, 3, 3, 4, 5, 6, 6]
    assert Sequences((0, 130, 130, 300), 64, ((1,), (), (1, 2)), 1).joints == 4


def test_even_cuts() -> None:
    assert even_cuts((0, 640, 640, 700, 828), 64, 3) == ((3, 6), (), (), (1,))
    assert even_cuts((0, 640), 64, 1) == ((),)


def test_joining() -> None:
    state = torch.zeros(2, 1, 3 * 2)  # K = 2, V = 1: rows of the state, then two of the map
    state[0, 0] = torch.tensor([1.0, 2.0, float("nan"), float("nan"), float("nan"), float("nan")])
    state[1, 0] = torch.tensor([10.0, 20.0, 1.0, 3.0, 5.0, 7.0])
    join_segments(state, torch.tensor([[0], [1]]), torch.tensor([0, 0, 0]), (2, 1))
    assert state[1, 0, :2].tolist() == [10 + 1 * 1 + 5 * 2, 20 + 3 * 1 + 7 * 2]
