from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qlagen.bench.plots import draw
from qlagen.bench.report import make_report
from qlagen.errors import QlagenError
from tests.bench.rows import example, timed


def pixels(path: Path) -> tuple[int, int, int]:
    """Height, width and the number of different colours."""
    from matplotlib import image

    data = image.imread(path)
    colours = {tuple(pixel) for pixel in (data[::3, ::3, :3] * 255).astype(int).reshape(-1, 3)}
    return data.shape[0], data.shape[1], len(colours)


def test_both_plots_of_a_direction_show_something(tmp_path: Path) -> None:
    records = [*example(), timed("qla_ops", 0.3, sequences="1x4096"), timed("fla", 0.7, sequences="1x4096")]
    written = draw(make_report(records), tmp_path, "NVIDIA H200")
    assert [path.name for path in written] == ["forward-heads.png", "forward-length.png", "backward-heads.png"]
    for path in written:
        height, width, colours = pixels(path)
        assert height > 150
        assert width > 250
        assert colours > 20


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(QlagenError) as fault:
        draw(make_report(example()), tmp_path)
    assert fault.value.code == "E-BENCH-PLOT"
    assert fault.value.hints == ("pip install 'qlagen[plots]'",)
