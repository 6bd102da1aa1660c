"""Templates and views agree, and an undefined name is an error."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2
import pytest

from qlagen.emit.templates import KERNEL_TEMPLATES, check_templates, environment, make_environment, template_root
from qlagen.errors import QlagenError


def edited(tmp_path: Path, name: str, before: str, after: str) -> jinja2.Environment:
    """The templates with one edit."""
    for template in KERNEL_TEMPLATES:
        text = (template_root() / template).read_text(encoding="utf-8")
        if template == name:
            assert before in text
            text = text.replace(before, after, 1)
        (tmp_path / template).write_text(text, encoding="utf-8")
    return make_environment(tmp_path)


@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        ("kernel.py.jinja", "kernel.summary", "kernel.sumary", "kernel.py.jinja and KernelView"),
        ("kernel.py.jinja", "kernel.summary", "summary", "not supplied: summary"),
        ("operations.jinja", "s.transpose_left", "s.transposed", "not supplied: transposed"),
        ("movers.jinja", "s.phase", "0", "never read: phase"),
        ("solver.jinja", "macro scan(s)", "macro sum(s)", "no macro 'scan'"),
    ],
)
def test_a_template_that_reads_other_fields_is_refused(
    tmp_path: Path, name: str, before: str, after: str, message: str
) -> None:
    with pytest.raises(QlagenError, match=re.escape(message)) as caught:
        check_templates(edited(tmp_path, name, before, after))
    assert caught.value.code == "E-TEMPLATES"


def test_the_templates_pass() -> None:
    check_templates(environment())


def test_an_undefined_name_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ kernel.name }}").render()


def test_templates_are_short() -> None:
    for name in KERNEL_TEMPLATES:
        assert len((template_root() / name).read_text(encoding="utf-8").splitlines()) < 150, name
