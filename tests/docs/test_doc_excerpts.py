"""What the documentation quotes is what the commands print, and its links lead somewhere."""

from __future__ import annotations

import re

import pytest

from tools import doc_excerpts
from tools.doc_excerpts import DOCS, ROOT, ExcerptError, quote, refresh

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_quoted_output_is_what_is_printed(page) -> None:
    text = page.read_text(encoding="utf-8")
    assert refresh(text) == text, "run python -m tools.doc_excerpts"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files_and_lines_fit(page) -> None:
    text = page.read_text(encoding="utf-8")
    assert [target for target in _LINK.findall(text) if not (page.parent / target).exists()] == []
    assert [line for line in text.splitlines() if len(line) > 120] == []


def test_the_index_names_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    names = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    assert {name for name in names if f"({name})" not in index} == set()


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("head", "  first 1", "  inner", "  last 1", "", "gap", "other", "x" * 200)
    monkeypatch.setattr(doc_excerpts, "output", lambda command: lines)


@pytest.mark.usefixtures("printed")
def test_ranges_take_lines_by_their_beginning() -> None:
    assert quote("c", "first .. last") == "first 1\ninner\nlast 1\n"
    assert quote("c", "head ; inner ; last") == "head\n...\n  inner\n  last 1\n"
    assert quote("c", "first ;\n  last") == "first 1\n...\nlast 1\n"
    assert quote("c", "inner ..") == "inner\nlast 1\n"
    assert quote("c", "other ..").splitlines()[0] == "other"
    assert quote("c", None).splitlines()[-1] == "x" * 112 + " ..."
    with pytest.raises(ExcerptError, match="no line from 4 on starts with 'inner'"):
        quote("c", "inner ; inner")


@pytest.mark.usefixtures("printed")
def test_a_block_below_a_comment_is_replaced_and_nothing_else() -> None:
    page = "text\n<!-- qlagen show a.toml: gap .. other -->\n```\nold\n```\nmore\n\n```\nkept\n```\n"
    assert refresh(page) == page.replace("old\n", "gap\nother\n")
    assert refresh(refresh(page)) == refresh(page)
