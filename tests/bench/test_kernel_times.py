"""What of the tool for single kernels needs no GPU."""

from __future__ import annotations

import argparse

import pytest

from tools.kernel_times import read_row, short_name


@pytest.mark.parametrize(
    ("text", "auto_cp", "plan"),
    [
        ("16:64/4x8192", True, "auto"),
        ("2:8/28672+4096@F", False, "never cut"),
        ("2:8/1x32768@16!segment_v64!forward_v128", 16, "16 segments, segment_v64, forward_v128"),
    ],
)
def test_rows(text: str, auto_cp: bool | int, plan: str) -> None:
    row = read_row(text)
    assert (row.auto_cp, row.plan) == (auto_cp, plan)
    assert text.startswith(f"{row.case.heads}/{row.case.label}")


def test_a_row_that_is_none() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"'16:64' is not HEADS/SEQUENCES\[@SEGMENTS\]\[!VARIANT\]"):
        read_row("16:64")


def test_names_of_kernels() -> None:
    assert short_name("gated_delta_rule_forward_v128_kernel") == "forward_v128"
    assert short_name("void join_kernel<128>(int const*, float*, int)") == "join"
    assert short_name("tables_kernel") == "tables"
