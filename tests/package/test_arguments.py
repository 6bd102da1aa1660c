"""Every bad argument raises ValueError that names it, what was got and what is allowed."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from qla_ops import chunk_delta_rule, chunk_gated_delta_rule, chunk_simple_gla
from qla_ops.runtime.arguments import check_call, check_offset_values
from qla_ops.runtime.choose import OPERATORS
from tests.package.calls import inputs, states

HALF = torch.zeros(1, 70, 4, 128, dtype=torch.bfloat16)
LIKE_V = "a tensor of shape [1, 70, 4, 128] is needed"

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no tensor": ({"q": 3}, "q is a int; a tensor [B, T, Hk, K] is needed"),
    "rank of q": ({"q": HALF[0]}, "q is of shape [70, 4, 128]; needed: [B, T, Hk, K]"),
    "T of k": ({"k": HALF[:, :3, :2]}, "k is of shape [1, 3, 2, 128]; needed: [B, T, Hk, K] = [1, 70, 2, 128]"),
    "heads of k": ({"k": HALF}, "k is of shape [1, 70, 4, 128]; needed: [B, T, Hk, K] = [1, 70, 2, 128]"),
    "K of k": ({"k": HALF[:, :, :2, :64]}, "k is of shape [1, 70, 2, 64]; needed: [B, T, Hk, K] = [1, 70, 2, 128]"),
    "batch of v": (
        {"v": HALF.expand(2, -1, -1, -1)},
        "v is of shape [2, 70, 4, 128]; needed: [B, T, Hv, V] = [1, 70, 4, 128]",
    ),
    "no heads": ({"v": HALF[:, :, :0]}, "v is of shape [1, 70, 0, 128]; needed: [B, T, Hv, V]"),
    "g per channel": ({"g": HALF.float()}, "g is of shape [1, 70, 4, 128]; needed: [B, T, Hv] = [1, 70, 4]"),
    "heads of g": ({"g": torch.zeros(1, 70, 2)}, "g is of shape [1, 70, 2]; needed: [B, T, Hv] = [1, 70, 4]"),
    "beta missing": ({"beta": None}, "beta is a NoneType; a tensor [B, T, Hv] is needed"),
    "type of q": ({"q": HALF[:, :, :2].int()}, "q is of type torch.int32; allowed: torch.bfloat16, torch.float16"),
    "type of g": ({"g": torch.zeros(1, 70, 4, dtype=torch.int64)}, "g is of type torch.int64; allowed: torch.bfloat16"),
    "mixed data": ({"v": HALF.half()}, "v is of type torch.float16; it must have the type of q, torch.bfloat16"),
    "sparse": ({"v": HALF.to_sparse()}, "v is a tensor with layout torch.sparse_coo; a dense (strided) tensor"),
    "device of v": ({"v": HALF.to("meta")}, "v is on meta; it must be on the device of q, cpu"),
    "heads": (
        {"v": HALF[:, :, :3], "g": torch.zeros(1, 70, 3), "beta": torch.zeros(1, 70, 3)},
        "v is given with Hv = 3 heads; Hv must be a multiple of Hk = 2",
    ),
    "host offsets alone": (
        {"cu_seqlens_cpu": torch.tensor([0, 70])},
        "cu_seqlens_cpu is given without cu_seqlens; it is a copy of cu_seqlens for the host; give cu_seqlens too",
    ),
    "host offsets a list": (
        {"cu_seqlens": torch.tensor([0, 70]), "cu_seqlens_cpu": [0, 70]},
        "cu_seqlens_cpu is a list; an int32 or int64 tensor on the CPU is needed",
    ),
    "type of host offsets": (
        {"cu_seqlens": torch.tensor([0, 70]), "cu_seqlens_cpu": torch.tensor([0.0, 70.0])},
        "cu_seqlens_cpu is of type torch.float32; allowed: torch.int32, torch.int64",
    ),
    "host offsets on a device": (
        {"cu_seqlens": torch.tensor([0, 70]), "cu_seqlens_cpu": torch.tensor([0, 70], device="meta")},
        "cu_seqlens_cpu is on meta; it must be on the CPU",
    ),
    "shape of host offsets": (
        {"cu_seqlens": torch.tensor([0, 70]), "cu_seqlens_cpu": torch.tensor([0, 30, 70])},
        "cu_seqlens_cpu is of shape [3]; needed: that of cu_seqlens, [2]",
    ),
    "one segment": ({"auto_cp": 1}, "auto_cp is 1; allowed: True (a cost model decides), False (sequences stay whole)"),
    "minus one segment": ({"auto_cp": -1}, "auto_cp is -1; allowed: True"),
    "a fraction of a segment": ({"auto_cp": 2.5}, "auto_cp is a float; allowed: True"),
    "no auto_cp": ({"auto_cp": None}, "auto_cp is a NoneType; allowed: True"),
    "threshold above zero": ({"cp_threshold": 0.1}, "cp_threshold is 0.1; a sum of log gates is needed: 0 or less"),
    "threshold not a number": ({"cp_threshold": float("nan")}, "cp_threshold is nan; a sum of log gates is needed"),
    "threshold a word": ({"cp_threshold": "-10"}, "cp_threshold is a str; a sum of log gates is needed"),
    "scale a tensor": ({"scale": torch.ones(1)}, "scale is a Tensor; a number or None is needed"),
    "scale a word": ({"scale": "big"}, "scale is a str; a number or None is needed"),
    "state a list": ({"initial_state": []}, "initial_state is a list; a tensor of shape [1, 4, 128, 128] is needed"),
    "state rank": (
        {"initial_state": states()[0]},
        "initial_state is of shape [4, 128, 128]; needed: [1, 4, 128, 128] = [N, Hv, K, V] with state_v_first=False",
    ),
    "state count": (
        {"initial_state": states(2)},
        "initial_state is of shape [2, 4, 128, 128]; needed: [1, 4, 128, 128]",
    ),
    "state layout": (
        {"initial_state": states(2), "state_v_first": True},
        "needed: [1, 4, 128, 128] = [N, Hv, V, K] with state_v_first=True",
    ),
    "state type": ({"initial_state": states().int()}, "initial_state is of type torch.int32; allowed: torch.bfloat16"),
    "state device": ({"initial_state": states().to("meta")}, "initial_state is on meta; it must be on the device of q"),
    "offsets a list": ({"cu_seqlens": [0, 70]}, "cu_seqlens is a list; an int32 or int64 tensor [N + 1]"),
    "offsets type": (
        {"cu_seqlens": torch.tensor([0.0, 70.0])},
        "cu_seqlens is of type torch.float32; allowed: torch.int32",
    ),
    "offsets rank": ({"cu_seqlens": torch.zeros(1, 2, dtype=torch.int32)}, "cu_seqlens is of shape [1, 2]; [N + 1]"),
    "offsets empty": ({"cu_seqlens": torch.zeros(0, dtype=torch.int32)}, "cu_seqlens is of shape [0]; [N + 1]"),
    "offsets device": (
        {"cu_seqlens": torch.zeros(2, dtype=torch.int32, device="meta")},
        "cu_seqlens is on meta; it must",
    ),
    "offsets fall": ({"cu_seqlens": torch.tensor([0, 60, 50])}, "cu_seqlens is 50 at index 2; offsets must start at 0"),
    "offsets past T": ({"cu_seqlens": torch.tensor([0, 71])}, "cu_seqlens is 71 at index 1; offsets must start at 0"),
    "offsets start": ({"cu_seqlens": torch.tensor([1, 70])}, "cu_seqlens is 1 at index 0; offsets must start at 0"),
    "out a word": ({"out": "o"}, f"out is a str; {LIKE_V}"),
    "out shape": ({"out": HALF[:, 1:]}, "out is of shape [1, 69, 4, 128]; needed: [1, 70, 4, 128]"),
    "out type": ({"out": HALF.float()}, "out is of type torch.float32; allowed: torch.bfloat16"),
    "out device": ({"out": HALF.to("meta")}, "out is on meta; it must be on the device of q"),
    "final state shape": (
        {"final_state_out": states(3)},
        "final_state_out is of shape [3, 4, 128, 128]; needed: [1, 4",
    ),
    "final state type": ({"final_state_out": states().long()}, "final_state_out is of type torch.int64; allowed"),
    "state pool": ({"state_indices": torch.zeros(1)}, "state_indices is a Tensor; state pools are not supported yet"),
    "implementation": ({"impl": "cuda"}, "impl is 'cuda'; allowed: None, 'hopper', 'reference'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_argument(name: str) -> None:
    changes, message = BAD[name]
    with pytest.raises(ValueError, match=f"^chunk_gated_delta_rule: .*{re.escape(message)}"):
        chunk_gated_delta_rule(**{**inputs(), **changes})


def test_packed_sequences_need_one_row() -> None:
    with pytest.raises(
        ValueError, match=r"cu_seqlens is given \(shape \[2\]\) with q of shape \[2, 70, 2, 128\]; packed"
    ):
        chunk_gated_delta_rule(**inputs(batch=2), cu_seqlens=torch.tensor([0, 70]))


def test_output_over_an_input() -> None:
    values = inputs()
    with pytest.raises(ValueError, match="out is in the same memory as v; it must not overlap an input"):
        chunk_gated_delta_rule(**values, out=values["v"])


def test_output_buffer_and_gradient() -> None:
    values = inputs()
    values["q"].requires_grad_()
    with pytest.raises(ValueError, match="out is given although a gradient is wanted"):
        chunk_gated_delta_rule(**values, out=torch.empty_like(HALF))


def test_too_many_tokens() -> None:
    one = torch.zeros(1, dtype=torch.bfloat16)
    heads, length = {"key": 1, "value": 1}, 2**31
    values = [
        one.as_strided((1, length, heads[item.heads], *(128 for _ in item.dims)), (0,) * (3 + len(item.dims)))
        for item in OPERATORS["gated_delta_rule"].tensors
    ]
    with pytest.raises(ValueError, match="B \\* T may be 2147483647 at most"):
        check_call(OPERATORS["gated_delta_rule"], (*values, None))


def test_offset_values_are_read_where_they_must_be() -> None:
    check_offset_values("f", "cu_seqlens", [0, 0, 5, 5], 6)
    with pytest.raises(ValueError, match="cu_seqlens is -1 at index 1"):
        check_offset_values("f", "cu_seqlens", [0, -1], 6)


def test_arguments_come_from_the_spec() -> None:
    """No gate without a gate in the spec; spec order; only None means the default."""
    names = {name: tuple(item.name for item in OPERATORS[name].arguments) for name in sorted(OPERATORS)}
    assert names == {
        "comba": ("q", "k", "v", "p", "g", "beta", "scale"),
        "delta_rule": ("q", "k", "v", "beta", "scale"),
        "gated_delta_product": ("q", "k", "v", "g", "beta", "scale"),
        "gated_delta_rule": ("q", "k", "v", "g", "beta", "scale"),
        "gdn2": ("q", "k", "v", "g", "b", "w", "scale"),
        "gla": ("q", "k", "v", "g", "scale"),
        "kda": ("q", "k", "v", "g", "beta", "scale"),
        "mamba2": ("q", "k", "v", "g", "dt", "scale"),
        "rwkv7": ("r", "w", "k", "v", "kappa", "a", "scale"),
        "simple_gla": ("q", "k", "v", "g", "scale"),
    }
    values = inputs()
    zero, _ = chunk_gated_delta_rule(**values, scale=0.0)
    assert not zero.any()
    default, _ = chunk_gated_delta_rule(**values)
    given, _ = chunk_gated_delta_rule(**values, scale=128**-0.5)
    assert torch.equal(default, given)
    with pytest.raises(TypeError, match="unexpected keyword argument 'g'"):
        chunk_delta_rule(**values)
    with pytest.raises(TypeError, match="unexpected keyword argument 'beta'"):
        chunk_simple_gla(**values)


def test_how_sequences_are_cut() -> None:
    """Only what the arguments say is kept of them; the portable implementation takes them too."""

    def cut(**options: Any) -> tuple[int, float]:
        values = inputs(length=5)
        call = check_call(OPERATORS["gated_delta_rule"], (*values.values(), None), **options)
        chunk_gated_delta_rule(**values, **options)
        return call.parts, call.threshold

    assert cut() == (0, -10.0)
    assert cut(auto_cp=False, cp_threshold=0) == (1, 0.0)
    assert cut(auto_cp=True, cp_threshold=float("-inf")) == (0, float("-inf"))
    assert cut(auto_cp=7) == (7, -10.0)
