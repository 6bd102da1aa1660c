"""Schedule files: what is read, which variants fit, and every error with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from qlagen.errors import QlagenError
from qlagen.schedule.options import load_options, parse_options
from tests.schedule.cases import program, schedule_file

TEXT = """\
target = "sm_90a"

[[carried]]
name = "v128"
value_tile = 128
stages = 3
ahead = 2
output_stages = 1
registers = { state = 208, auxiliary = 72, movers = 24 }

[[carried]]
name = "v64"
value_tile = 64
stages = 3
ahead = 2
output_stages = 1
registers = { state = 208, auxiliary = 128, movers = 40 }

[[chunk_parallel]]
name = "tile"
stages = 3
output_stages = 2
ctas_per_sm = 2
mover_warps = 3
"""


def test_the_shipped_file() -> None:
    file = schedule_file()
    assert file.target == "sm_90a"
    assert [(o.name, o.value_tile, o.stages, o.ahead, o.output_stages) for o in file.carried] == [
        ("v128", 128, 3, 2, 1),
        ("v128", 128, 2, 1, 1),
        ("v64", 64, 4, 1, 1),
        ("v64", 64, 3, 2, 1),
        ("v64", 64, 2, 1, 1),
    ]
    assert dict(file.carried[0].registers) == {"state": 208, "auxiliary": 72, "movers": 24}
    found = [
        (o.name, (o.heads, o.keys), o.stages, o.ctas_per_sm, o.mover_warps, o.registers) for o in file.chunk_parallel
    ]
    assert found == [
        ("twin", (2, 2), 1, 3, 2, (("tile", 104), ("movers", 56))),
        ("pair", (4, 2), 1, 2, 2, ()),
        ("tile", (4, 1), 1, 3, 2, (("tile", 120), ("movers", 40))),
        ("tile", (1, 1), 1, 4, 2, ()),
        ("tile", (1, 1), 2, 2, 3, ()),
        ("tile", (1, 1), 2, 1, 4, ()),
    ]


def test_entries_of_one_name_are_alternatives() -> None:
    file = schedule_file()
    groups = file.alternatives(program("delta_rule", "forward"), {"C": 64, "K": 128, "V": 128})
    assert groups == (file.carried[:2], file.carried[2:])


@pytest.mark.parametrize(
    ("V", "names"), [(64, ["v64"]), (128, ["v128", "v64"]), (192, ["v64"]), (256, ["v128", "v64"])]
)
def test_variants_that_do_not_divide_V_are_left_out(V: int, names: list[str]) -> None:
    dims = {"C": 64, "K": 128, "V": V}
    assert [o.name for o in schedule_file().variants(program("delta_rule", "forward"), dims)] == names
    prepare = schedule_file().variants(program("delta_rule", "prepare"), dims)
    assert [(o.name, o.value_tile) for o in prepare] == [("twin", V), ("pair", V), ("tile", V)]


def test_no_variant_fits() -> None:
    file = parse_options(TEXT.replace("value_tile = 64", "value_tile = 128"), "s.toml")
    with pytest.raises(QlagenError, match="E-VARIANT") as caught:
        file.variants(program("delta_rule", "forward"), {"C": 64, "K": 64, "V": 64})
    assert "s.toml: no carried variant has a value tile that divides V = 64" in caught.value.render()
    assert "value tiles: v128 (128), v64 (128)" in caught.value.render()


def test_optional_keys() -> None:
    text = TEXT.replace("ahead = 2\n", "ahead = 2\ndelays = [2, 0]\nctas_per_sm = 1\npersistent = true\n", 1)
    assert [options.persistent for options in parse_options(text, "s.toml").carried] == [True, False]
    text = text.replace("mover_warps = 3", "mover_warps = 4\nregisters = { tile = 208, movers = 40 }")
    file = parse_options(text, "s.toml")
    assert file.carried[0].delays == (("#1", 2), ("#2", 0))
    assert file.carried[1].delays == ()
    assert file.chunk_parallel[0].registers == (("tile", 208), ("movers", 40))


SEGMENT = """
[[segment]]
name = "v64"
value_tile = 64
stages = 3
ahead = 2
ctas_per_sm = 2
form = 1
registers = { state = 176, auxiliary = 40, movers = 24 }
"""


def test_entries_of_segments() -> None:
    (entry,) = parse_options(TEXT + SEGMENT, "s.toml").segment
    assert (entry.name, entry.value_tile, entry.ctas_per_sm, entry.form) == ("v64", 64, 2, 1)
    assert parse_options(TEXT, "s.toml").segment == ()
    with pytest.raises(QlagenError, match="unknown key 'output_stages'"):
        parse_options(TEXT + SEGMENT + "output_stages = 1\n", "s.toml")
    file = parse_options(TEXT + SEGMENT, "s.toml")
    with pytest.raises(QlagenError, match="no segment variant has a value tile that divides V = 64 and K = 96"):
        file.alternatives(program("delta_rule", "segment"), {"C": 64, "K": 96, "V": 64})


BAD = [
    ('target = "sm_90a"\n', "", "E-MISSING", 1, 1, "'target' is missing"),
    ("value_tile = 128", "value_tile = 100", "E-VALUE", 5, 14, "value_tile: must be a multiple of 64, got 100"),
    ("value_tile = 128", "value_tile = 32", "E-VALUE", 5, 14, "value_tile: must lie between 64 and 256, got 32"),
    ("value_tile = 128", 'value_tile = "128"', "E-TYPE", 5, 14, "value_tile must be an integer, got a string"),
    ("stages = 3", "stage = 3", "E-KEY", 6, 1, "did you mean 'stages'?"),
    ("stages = 3", "stages = 9", "E-VALUE", 6, 10, "stages: must lie between 1 and 8, got 9"),
    ("stages = 3", "stages = true", "E-TYPE", 6, 10, "stages must be an integer, got a boolean"),
    ("ahead = 2\n", "", "E-MISSING", 3, 1, "the key 'ahead' is missing"),
    ("state = 208", "state = 204", "E-VALUE", 9, 23, "state: must be a multiple of 8, got 204"),
    ("state = 208", "state = 264", "E-VALUE", 9, 23, "state: must lie between 24 and 256, got 264"),
    ("auxiliary = 72", "helper = 72", "E-KEY", 9, 28, "allowed here: state, auxiliary, movers"),
    ('name = "v128"', 'name = "V 128"', "E-VALUE", 4, 8, "'V 128' must be lower case letters, digits and _"),
    ('name = "v64"', 'name = "v128"', "E-DUPLICATE", 12, 8, "alternatives named 'v128' with different value tiles"),
    ('target = "sm_90a"', 'target = "sm_90"', "E-VALUE", 1, 10, "did you mean 'sm_90a'?"),
    ("[[chunk_parallel]]", "[chunk_parallel]", "E-TYPE", 19, 1, "chunk_parallel must be an array of tables"),
    ("mover_warps = 3", "mover_warps = 1", "E-VALUE", 24, 15, "mover_warps: must lie between 2 and 8, got 1"),
    ("mover_warps = 3", "mover_warps = 3\nahead = 1", "E-KEY", 25, 1, "unknown key 'ahead'"),
    ("stages = 3", "stages = 3\npersistent = 1", "E-TYPE", 7, 14, "persistent must be true or false, got an integer"),
    ("ctas_per_sm = 2", "ctas_per_sm = [2]", "E-TYPE", 23, 15, "ctas_per_sm must be an integer, got an array"),
    ("[[carried]]", "[[carry]]", "E-TABLE", 3, 3, "did you mean 'carried'?"),
    ("ahead = 2\n", "ahead = 2\ndelays = 2\n", "E-TYPE", 8, 10, "delays must be an array of integers, got an integer"),
    ("ahead = 2\n", "ahead = 2\ndelays = [1, -1]\n", "E-VALUE", 8, 14, "delays[1]: must lie between 0 and 64, got -1"),
    ("ahead = 2\n", "ahead =\n", "E-TOML", 7, 8, "not valid TOML"),
]


@pytest.mark.parametrize(("old", "new", "code", "line", "column", "text"), BAD, ids=[f"{b[2]}-{b[1]}" for b in BAD])
def test_errors(old: str, new: str, code: str, line: int, column: int, text: str) -> None:
    assert old in TEXT
    with pytest.raises(QlagenError) as caught:
        parse_options(TEXT.replace(old, new, 1), "s.toml")
    error = caught.value
    assert error.code == code, error.render()
    assert error.span is not None
    assert (error.span.file, error.span.line, error.span.column) == ("s.toml", line, column), error.render()
    assert text in error.render()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(QlagenError, match="E-FILE") as caught:
        load_options(tmp_path / "none.toml")
    assert "cannot read the schedule file" in caught.value.message
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(QlagenError, match="E-FILE") as caught:
        load_options(tmp_path / "bytes.toml")
    assert "not UTF-8 text: byte 0 is 0xff" in caught.value.message
