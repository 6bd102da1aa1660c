"""What the rules derive: roles, orders, rings, barriers and registers, for the three specs and for other forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from qlagen.errors import QlagenError
from qlagen.program.ir import Elementwise, Gemm, Inverse, Load, Program, Ref, Store, Tensor
from qlagen.schedule.checks import check_schedule
from qlagen.schedule.show import show_schedule
from qlagen.schedule.variants import build_schedules
from tests.program.examples import BETA, DIMS, mul
from tests.schedule import programs
from tests.schedule.cases import KERNELS, build, kernel, order, program, role, schedule_file, target

GOLDEN = Path(__file__).parent / "golden"
FORWARDS = [key for key in KERNELS if key[1] == "forward"]


@pytest.mark.parametrize("key", KERNELS, ids="-".join)
def test_text(key: tuple[str, str, str], golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN / f"{'_'.join(key)}.txt", show_schedule(kernel(*key)))


@pytest.mark.parametrize("key", KERNELS, ids="-".join)
def test_building_twice_gives_the_same(key: tuple[str, str, str]) -> None:
    assert kernel.__wrapped__(*key) == kernel(*key)


def test_gated_forward_has_the_order_of_the_measured_kernel() -> None:
    """Recall and read-out in flight under V's fetch; the state's update before the output's."""
    expected = """?q_k_ready k_S* q_S* ?v_a_ready v_f ?O_left_ready wait(1) Vn_right Vn* S1_base wait(1) O_base wait(0)
        S1_right S1* Vn_b O* wait(1) {} ?o_free store_o !o_ready"""
    ends = {"v128": "S_b_next wait(0) !stage_free", "v64": "!stage_free S_b_next wait(0) !O_left_free"}
    for variant, end in ends.items():
        assert order(kernel("gated_delta_rule", "forward", variant), "state") == expected.format(end).split()


def test_gated_forward_without_pins_has_the_order_of_the_first_measured_kernel() -> None:
    """Recall in flight under V's fetch; new values and read-out together; the state's update before the output's."""
    expected = """?q_k_ready k_S* ?v_a_ready v_f ?O_left_ready wait(0) Vn_right Vn* q_S* S1_base wait(1)
        S1_right S1* Vn_b wait(1) O_base O* wait(1) S_b_next wait(0) !stage_free ?o_free store_o !o_ready"""
    assert order(build(program("gated_delta_rule", "forward"), "v128", delays=()), "state") == expected.split()


def test_forward_without_a_solve_has_one_product_on_its_chain() -> None:
    expected = """?q_k_ready q_S* ?v_ready v_f ?O_left_ready S1_base S1_right S1* v_b wait(1) O_base O* wait(1)
        S_b_next wait(0) !stage_free ?o_free store_o !o_ready"""
    assert order(kernel("simple_gla", "forward", "v128"), "state") == expected.split()


@pytest.mark.parametrize("key", FORWARDS, ids="-".join)
def test_state_is_held_transposed_and_products_read_it_from_registers(key: tuple[str, str, str]) -> None:
    schedule = kernel(*key)
    tile = schedule.options.value_tile
    assert schedule.transposed
    assert schedule.carried_operand == "S_b"
    gemms = [i.step for i in role(schedule, "state").body if i.step is not None and i.step.kind == "gemm"]
    assert {gemm.left_home for gemm in gemms} == {"registers"}
    values = {value.name: value for value in schedule.values}
    assert {values[gemm.writes or ""].shape[0] for gemm in gemms} == {tile}
    assert values["S"].shape == (tile, 128)
    assert role(schedule, "state").warps == tile // 16


def test_transposes_of_the_oriented_products() -> None:
    """U^T = S^T K^T reads K as it lies with K along rows: transposed; S'^T += E^T K reads it straight."""
    body = role(kernel("gated_delta_rule", "forward", "v128"), "state").body
    flags = {i.step.name: i.step.transpose_right for i in body if i.step is not None and i.step.kind == "gemm"}
    assert flags == {"k_S": True, "Vn": True, "q_S": True, "S1": False, "O": True}


@pytest.mark.parametrize(
    ("operator", "estimate"), [("gated_delta_rule", 208), ("delta_rule", 208), ("simple_gla", 192)]
)
def test_register_estimates_are_those_that_the_compiler_was_seen_to_need(operator: str, estimate: int) -> None:
    for variant in ("v128", "v64"):
        schedule = kernel(operator, "forward", variant)
        assert role(schedule, "state").estimate == estimate
        assert role(schedule, "auxiliary").estimate == 72


def test_fragments_are_reused_once_their_reader_has_retired() -> None:
    schedule = kernel("gated_delta_rule", "forward", "v128")
    groups = {fragment.values for fragment in schedule.fragments}
    assert {("S", "S1_base", "S1"), ("k_S", "Vn"), ("q_S", "O_base", "O"), ("v_f", "O_out")} <= groups
    assert ("Vn_right", "S1_right") in groups


def test_barriers_of_the_gated_forward() -> None:
    schedule = kernel("gated_delta_rule", "forward", "v128")
    found = {b.name: (b.count, b.transaction_bytes, b.stages) for b in schedule.barriers}
    assert found == {
        "q_k_ready": (1, 2 * 64 * 128 * 2, 3),
        "v_a_ready": (1, 64 * 128 * 2 + 64 * 64 * 2, 3),
        "g_cum_ready": (1, 0, 3),
        "o_ready": (8, 0, 1),
        "O_left_ready": (4, 0, 3),
        "stage_free": (8, 0, 3),
        "o_free": (1, 0, 1),
    }
    assert schedule.implied == ("auxiliary: wait for stage_free", "auxiliary: arrive at stage_free")


def test_vectors_share_a_mover_warp_but_not_a_barrier() -> None:
    whole = program("gated_delta_rule", "forward")
    scaled = (
        replace(o, expr=mul(o.expr, Ref("beta", "rows"))) if isinstance(o, Elementwise) and o.name == "Vn_right" else o
        for o in whole.operations
    )
    schedule = build(replace(whole, operations=(Load("beta", BETA), *scaled)), "v128")
    movers = [role.name for role in schedule.roles if role.kind == "mover"]
    assert movers == ["load_q_k", "load_g_cum_beta", "load_v_a", "store_o"]
    expected = ["?stage_free", "g_cum", "!g_cum_ready", "beta", "!beta_ready"]
    assert order(schedule, "load_g_cum_beta") == expected


def test_movers_with_the_fewest_registers_share_the_work_among_all_warps() -> None:
    def movers(variant: str) -> list[str]:
        schedule = kernel("delta_rule", "forward", variant)
        return [role.name for role in schedule.roles if role.kind == "mover"]

    assert movers("v128") == ["load_q_k", "load_v", "load_a", "store_o"]
    assert movers("v64") == ["load_q_k", "load_v_a", "store_o"]


def test_shared_memory_is_counted() -> None:
    schedule = kernel("gated_delta_rule", "forward", "v128")
    loads = 3 * (3 * 64 * 128 * 2 + 64 * 64 * 2 + 64 * 4)
    handovers = 3 * (64 * 64 * 2 + 3 * 64 * 4)
    barriers = 8 * (5 * 3 + 2)
    assert schedule.shared_bytes == loads + handovers + 64 * 128 * 2 + barriers


def test_other_stage_counts_get_their_own_barriers() -> None:
    """Hand-over rings with another number of stages cannot share the slots of the loads."""
    schedule = build(program("gated_delta_rule", "forward"), "v64", stages=3, ahead=1)
    stages = {barrier.name: barrier.stages for barrier in schedule.barriers}
    assert stages["stage_free"] == 3
    assert stages["O_left_free"] == stages["O_left_ready"] == 2


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("operator", ["gated_delta_rule", "delta_rule", "simple_gla"])
def test_every_depth_of_the_rings_is_synchronised(operator: str, ahead: int, stages: int) -> None:
    schedule = build(program(operator, "forward"), "v64", ahead=ahead, stages=stages, output_stages=1 + ahead)
    check_schedule(schedule, target())


def test_prepare_hands_over_inside_its_role() -> None:
    schedule = kernel("gated_delta_rule", "prepare", "single")
    expected = """?k_ready k_k* ?g_beta_ready ?G_free sync G !G_ready wait(0) !k_free sync A_source ?a_free A_beta
        !a_ready !g_beta_free"""
    assert order(schedule, "tile") == expected.split()
    rings = {ring.name: ring for ring in schedule.rings}
    assert (rings["A_beta_blocks"].stage_class, rings["A_beta_blocks"].dims) == ("inner", ())
    assert rings["A_beta_blocks"].bytes == 7 * 1024
    assert rings["G"].consumers == ("tile", "store_G_a")
    assert schedule.carried_operand is None
    assert schedule.threads == 128 + 2 * 32
    assert all(role.registers is None for role in schedule.roles)


def test_heads_share_what_is_of_their_key_head() -> None:
    """One product, and K's slot is free while the heads are worked on; what differs between heads has a place each."""
    schedule = kernel("gated_delta_rule", "prepare", "tile")
    expected = """?k_ready k_k* ?g_beta_ready ?G_free sync G !G_ready wait(0) !k_free k_k_shared ?a_free sync A_beta
        !a_ready !g_beta_free"""
    assert order(schedule, "tile") == expected.split()
    assert {ring.name: ring.heads for ring in schedule.rings} == {
        **dict.fromkeys(("k", "k_k_shared"), 1),
        **dict.fromkeys(("g", "beta", "G", "a"), 4),
    }
    assert next(ring.bytes for ring in schedule.rings if ring.name == "a") == 4 * 64 * 64 * 2


def test_several_key_heads_have_a_product_each() -> None:
    """Their tiles come together; a slot of what is shared has one part for each of them."""
    schedule = kernel("gated_delta_rule", "prepare", "pair")
    expected = """?k_k_1_ready k_k* k_k_1* ?g_beta_ready ?G_free sync G !G_ready wait(1) k_k_shared wait(0) !k_k_1_free
        k_k_shared_1 ?a_free sync A_beta !a_ready !g_beta_free"""
    assert order(schedule, "tile") == expected.split()
    assert [ring.name for ring in schedule.rings if ring.load is not None] == ["k", "k_1", "g", "beta"]
    assert next(ring.heads for ring in schedule.rings if ring.name == "k_k_shared") == 2


def test_a_program_of_value_heads_alone_needs_no_key_heads() -> None:
    text = _fails("E-HEADS", program("simple_gla", "prepare"), "pair")
    assert "G needs nothing of a key head: keys = 1 does" in text


def test_what_heads_cannot_share() -> None:
    text = _fails("E-HEADS", programs.solved_keys(), "tile")
    assert "is read by the kernel that makes it" in text
    assert "schedule one head at a time: heads = 1" in text


def test_an_inverse_whose_threads_meet_nowhere_else_has_a_barrier_for_its_scratch() -> None:
    schedule = kernel("delta_rule", "prepare", "single")
    expected = "?k_ready k_k* wait(0) !k_free ?beta_ready A_source ?a_free sync A_beta !a_ready !beta_free"
    assert order(schedule, "tile") == expected.split()


def test_a_program_without_matrices() -> None:
    schedule = kernel("simple_gla", "prepare", "tile")
    assert order(schedule, "tile") == ["?g_ready", "?g_cum_free", "G", "!g_cum_ready", "!g_free"]
    assert schedule.fragments == ()


def test_elementwise_operations_are_fused_first() -> None:
    """One operation per product, or all in one: the same kernel."""
    whole = program("gated_delta_rule", "forward")
    assert build(programs.unfused(whole), "v64") == kernel("gated_delta_rule", "forward", "v64")


def test_nothing_is_done_for_what_is_not_read() -> None:
    schedule = build(programs.state_only(program("gated_delta_rule", "forward")), "v64", stages=3, ahead=2)
    assert order(schedule, "auxiliary") == ["?g_cum_ready", "g_from_start", "g_to_end", "!g_from_start_g_to_end_ready"]
    loads = [role.name for role in schedule.roles if role.kind == "mover"]
    assert loads == ["load_k", "load_g_cum", "load_v_a"]


def test_a_role_without_work_is_absent() -> None:
    schedule = build(programs.state_only(program("delta_rule", "forward")), "v64")
    assert [role.name for role in schedule.roles if role.kind == "compute"] == ["state"]
    assert schedule.threads == 128 + 128


def test_stores_go_out_as_they_are_filled() -> None:
    schedule = build(programs.keep_values(program("delta_rule", "forward"), "Vn"), "v64", mover_warps=3)
    expected = ["?kept_ready", "fence", "kept", "!kept_free", "?o_ready", "fence", "o", "!o_free"]
    assert order(schedule, "store_kept_o") == expected


def test_a_scaled_load_is_handed_over_as_a_right_operand() -> None:
    schedule = build(programs.scaled_keys(), "v64")
    rings = {ring.name: ring for ring in schedule.rings}
    assert (rings["k_end"].stage_class, rings["k_end"].async_read) == ("handover", True)
    assert rings["total_vector"].consumers == ("state",)
    state = role(schedule, "state").body
    base = next(i.step for i in state if i.step is not None and i.step.name == "S_base")
    assert base.lookups == (("total", "total_vector"),)


def test_products_read_what_their_own_role_made() -> None:
    """The inverse stays in its ring as a left operand; a scaled K goes through a ring with a fence and a barrier."""
    schedule = build(programs.solved_keys(), "single", ctas_per_sm=1)
    steps = {i.step.name: i.step for i in role(schedule, "tile").body if i.step is not None}
    assert (steps["W"].left, steps["W"].right, steps["W"].left_home) == ("A", "k_beta", "shared")
    assert "from_start" not in steps, "a vector that only another vector reads is computed inside it"
    body = order(schedule, "tile")
    assert body.index("put_k_beta") < body.index("W*")
    between = body[max(body.index("put_k_beta"), body.index("A")) : body.index("W*")]
    assert "fence" in between
    assert "sync" in between


@pytest.mark.parametrize(("K", "V"), [(64, 64), (64, 128), (128, 64)])
@pytest.mark.parametrize("operator", ["gated_delta_rule", "delta_rule", "simple_gla"])
def test_other_sizes(operator: str, K: int, V: int) -> None:
    schedule = build(program(operator, "forward"), "v64", {"C": 64, "K": K, "V": V})
    values = {value.name: value for value in schedule.values}
    assert values["S"].shape == (64, K)
    prepare = build(program(operator, "prepare"), "tile", {"C": 64, "K": K, "V": V}, value_tile=V)
    assert [ring.shape for ring in prepare.rings if ring.name == "k"] in ([], [(64, K)])


def _fails(code: str, program: Program, variant: str = "v64", **changes: object) -> str:
    with pytest.raises(QlagenError) as caught:
        build(program, variant, **changes)
    assert caught.value.code == code, caught.value.render()
    return caught.value.render()


def test_too_many_registers() -> None:
    forward = program("gated_delta_rule", "forward")
    registers = (("state", 200), ("auxiliary", 128), ("movers", 40))
    text = _fails("E-ESTIMATE", forward, registers=registers)
    assert "role state needs 208 registers per thread, and has 200" in text
    text = _fails("E-ESTIMATE", program("gated_delta_rule", "prepare"), "single", ctas_per_sm=6)
    assert "role tile needs 80 registers per thread, and has 56" in text


def test_registers_of_one_role_only() -> None:
    text = _fails("E-REGISTERS", program("delta_rule", "forward"), registers=(("state", 208), ("movers", 40)))
    assert "but not those of role auxiliary" in text


def test_registers_that_no_file_has() -> None:
    registers = (("state", 240), ("auxiliary", 72), ("movers", 24))
    text = _fails("E-REGISTERS", program("gated_delta_rule", "forward"), "v128", registers=registers)
    assert "73728 registers per CTA, and 65536 are there for 512 threads" in text
    assert "state 256 x 240, auxiliary 128 x 72, movers 128 x 24" in text
    registers = (("state", 210), ("auxiliary", 72), ("movers", 24))
    text = _fails("E-REGISTERS", program("gated_delta_rule", "forward"), registers=registers)
    assert "210 registers for role state: setmaxnreg takes multiples of 8 from 24 to 256" in text


def test_a_product_needs_its_registers_at_launch() -> None:
    registers = (("state", 176), ("auxiliary", 40), ("movers", 24))
    few = {"stages": 3, "ahead": 2, "registers": registers, "ctas_per_sm": 2}
    text = _fails("E-REGISTERS", program("gated_delta_rule", "segment"), **few)
    assert "a product needs about 96 registers per thread, and the launch gives 80" in text
    assert "384 threads, 2 CTAs per SM" in text


def test_too_much_shared_memory() -> None:
    text = _fails("E-SHARED", program("gated_delta_rule", "forward"), "v128", stages=4)
    assert "bytes of shared memory with alignment, a CTA can have 232448" in text
    assert "the largest rings: q 65536 (4 stages), k 65536 (4 stages), v 65536 (4 stages)" in text
    _fails("E-SHARED", programs.solved_keys(), "single", stages=3, output_stages=2, ctas_per_sm=2)


def test_too_few_mover_warps() -> None:
    text = _fails("E-MOVERS", program("gated_delta_rule", "forward"), mover_warps=1)
    assert "2 mover warps are needed, at most 1 are allowed" in text


def test_mover_warps_are_shared_as_far_as_needed() -> None:
    schedule = build(program("gated_delta_rule", "forward"), "v64", mover_warps=2)
    movers = [role.name for role in schedule.roles if role.kind == "mover"]
    assert movers == ["load_q_k_g_cum_v_a", "store_o"]


def test_pins() -> None:
    forward = program("gated_delta_rule", "forward")
    pinned = build(forward, "v64", delays=(("q_S", 0),))
    assert order(pinned, "state")[:3] == ["?q_k_ready", "k_S*", "q_S*"]
    assert dict(pinned.delays)["q_S"] == 0
    assert build(forward, "v64", delays=(("#1", 0),)).roles == pinned.roles
    assert build(forward, "v64", delays=(("#7", 0),)).roles == build(forward, "v64", delays=()).roles
    assert build(program("simple_gla", "forward"), "v64", delays=(("#1", 9),)).delays == (("q_S", 1), ("O", 0))


def test_bad_pins() -> None:
    forward = program("gated_delta_rule", "forward")
    text = _fails("E-PIN", forward, delays=(("qS", 0),))
    assert "no off-chain product of role state" in text
    assert "off-chain products: q_S, O" in text
    assert "did you mean 'q_S'?" in text
    text = _fails("E-PIN", forward, delays=(("q_S", 9),))
    assert "no candidate order of role state has the pinned delays q_S = 9" in text
    assert "q_S = 2, O = 0; q_S = 0, O = 0; q_S = 3, O = 0" in text


def test_candidates_are_ranked() -> None:
    schedule = build(program("gated_delta_rule", "forward"), "v128", delays=())
    assert schedule.candidates == len(schedule.ranked) == 3
    assert schedule.ranked[0].delays == schedule.delays
    assert schedule.ranked[0].clocks == schedule.modelled_clocks
    assert [order.registers for order in schedule.ranked] == [208, 208, 208]


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        ({"C": 32, "K": 128, "V": 128}, "chunks of 32 tokens: kernels are made for C = 64"),
        ({"C": 64, "K": 96, "V": 128}, "K = 96: must be a multiple of 64 from 64 to 256"),
        ({"C": 64, "K": 512, "V": 128}, "K = 512: must be a multiple of 64 from 64 to 256"),
        ({"C": 64, "K": 128, "V": 192}, "a value tile of 128 columns: must be a multiple of 64 that divides V = 192"),
        ({"C": 64, "K": 128}, "the size of V is missing"),
    ],
)
def test_sizes_that_no_kernel_has(dims: dict[str, int], text: str) -> None:
    with pytest.raises(QlagenError, match=r"E-DIMENSION") as caught:
        build(program("delta_rule", "forward"), "v128", dims)
    assert text in caught.value.render()


def test_a_program_that_contracts_over_the_tiled_dimension() -> None:
    forward = program("simple_gla", "forward")
    v_S = Gemm("v_S", "v", "S", transpose_right=True)
    tensor = Tensor("r", ("C", "K"), "data", "value", "token")
    bad = replace(forward, operations=(*forward.operations, v_S), stores=(*forward.stores, Store(tensor, "v_S")))
    assert "v_S [C, K] has no rows of V to tile" in _fails("E-ORIENT", bad, "v128")
    assert "v_S contracts over V, which CTAs share out" in _fails("E-TILE", bad, "v64")


def test_a_dependent_right_operand() -> None:
    """S^T S cannot be had without S in shared memory, whichever way round."""
    squared = Gemm("S_S", "S", "S", transpose_left=True)
    tensor = Tensor("r", ("V", "V"), "data", "value", "chunk")
    forward = program("simple_gla", "forward")
    bad = replace(forward, operations=(*forward.operations, squared), stores=(*forward.stores, Store(tensor, "S_S")))
    text = _fails("E-ORIENT", bad)
    assert "S_S: S depends on the carried value and would have to be a right operand" in text


def test_a_solve_of_what_depends_on_the_state() -> None:
    forward = program("delta_rule", "forward")
    solved = (Gemm("o_v", "O", "v", transpose_right=True), Inverse("I", "o_v"))
    tensor = Tensor("i", ("C", "C"), "data", "value", "chunk")
    bad = replace(forward, operations=(*forward.operations, *solved), stores=(*forward.stores, Store(tensor, "I")))
    assert "o_v [C, C] has no rows of V to tile" in _fails("E-ORIENT", bad, "v128")


def test_a_product_over_V_beside_the_state_needs_all_of_V() -> None:
    """The split variant is left out: each of its CTAs has a part of the sum."""
    forward = program("simple_gla", "forward")
    v_v = Gemm("v_v", "v", "v", transpose_right=True)
    tensor = Tensor("r", ("C", "C"), "data", "value", "chunk")
    both = replace(forward, operations=(*forward.operations, v_v), stores=(*forward.stores, Store(tensor, "v_v")))
    schedules = build_schedules(both, dict(DIMS), schedule_file(), target())
    assert [schedule.options.name for schedule in schedules] == ["v128"]
    short = [name for name in order(schedules[0], "auxiliary") if name.endswith("*")]
    assert short == ["q_k*", "v_v*"], "one product after the other: both at once would not fit the role's registers"
    assert role(schedules[0], "auxiliary").estimate == 72


def test_names_of_register_values_are_unique() -> None:
    """Both roles fetch V, and the program has a value named like a fetched one."""
    forward = program("simple_gla", "forward")
    scaled = Elementwise("v_f", mul(Ref("v"), Ref("g_from_start", "rows")))
    tensor = Tensor("r", ("C", "V"), "data", "value", "token")
    both = replace(forward, operations=(*forward.operations, scaled), stores=(*forward.stores, Store(tensor, "v_f")))
    schedule = build(both, "v64")
    names = [value.name for value in schedule.values]
    assert len(names) == len(set(names))
    assert {"v_f", "v_f_state", "v_f_auxiliary"} <= set(names)
    fragments = [fragment.name for fragment in schedule.fragments]
    assert len(fragments) == len(set(fragments))


def test_a_carry_that_is_only_replaced() -> None:
    forward = program("simple_gla", "forward")
    operations = tuple(
        replace(o, add=None) if isinstance(o, Gemm) and o.name == "S1" else o for o in forward.operations
    )
    text = _fails("E-PLACE", replace(forward, operations=operations))
    assert "S1 [K, V] replaces S without depending on it" in text


def test_an_accumulator_that_the_state_role_does_not_hold() -> None:
    """A product of loads is the auxiliary role's, and reaches the state role in 16 bits only."""
    forward = program("simple_gla", "forward")
    onto_product = (Gemm("q_k_v", "O_left", "v"), Gemm("both", "q", "S", add="q_k_v"))
    tensor = Tensor("r", ("C", "V"), "data", "value", "token")
    bad = replace(forward, operations=(*forward.operations, *onto_product))
    text = _fails("E-PLACE", replace(bad, stores=(*bad.stores, Store(tensor, "both"))))
    assert "both [C, V] accumulates onto q_k_v, which role state does not hold in fp32" in text


def test_accumulating_onto_a_load_or_a_value_that_is_read_later_takes_a_copy() -> None:
    forward = program("delta_rule", "forward")
    onto_load = tuple(replace(o, add="v") if isinstance(o, Gemm) and o.name == "O" else o for o in forward.operations)
    steps = order(build(replace(forward, operations=onto_load), "v64"), "state")
    assert steps.index("v_f") < steps.index("O_sum") < steps.index("O*")
    mixed = Elementwise("mixed", mul(Ref("O_base"), Ref("O")))
    tensor = Tensor("r", ("C", "V"), "data", "value", "token")
    later = replace(forward, operations=(*forward.operations, mixed), stores=(*forward.stores, Store(tensor, "mixed")))
    registers = (("state", 240), ("auxiliary", 128), ("movers", 40))
    assert "O_sum" in order(build(later, "v64", registers=registers), "state")


def test_a_carried_value_read_after_its_update_has_no_order() -> None:
    forward = program("delta_rule", "forward")
    change = Elementwise("change", mul(Ref("S1"), Ref("S")))
    tensor = Tensor("r", ("K", "V"), "data", "value", "chunk")
    bad = replace(forward, operations=(*forward.operations, change), stores=(*forward.stores, Store(tensor, "change")))
    text = _fails("E-ORDER", bad)
    assert "these steps wait for each other" in text
    assert "cannot be read afterwards" in text
