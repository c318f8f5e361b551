"""The site is complete: its navigation has every page once, and no page that doesn't exist."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values():
                yield from pages(inner if isinstance(inner, list) else [inner])


def test_the_navigation_has_every_page_once() -> None:
    listed = Counter(pages(SITE["nav"]))
    existing = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert set(listed) == existing
    assert {page for page, times in listed.items() if times != 1} == set()


def test_every_page_has_one_title_which_is_its_first_line() -> None:
    """The navigation consists of these titles."""
    titles = Counter()
    for path in DOCS.rglob("*.md"):
        text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        found = re.findall(r"^# (.+)$", text, re.M)
        assert len(found) == 1, path
        assert text.startswith("# "), path
        titles[found[0]] += 1
    assert set(titles.values()) == {1}


def test_every_picture_of_a_page_exists_and_is_described() -> None:
    """And no picture is loaded from another site."""
    for path in [*DOCS.rglob("*.md"), ROOT / "README.md"]:
        for words, target in re.findall(r"!\[(.*?)\]\((.*?)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).is_file(), target
            assert len(words.split()) > 2, target


def test_the_site_is_built_where_make_says() -> None:
    """And a broken link fails the build."""
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert (SITE["site_dir"], SITE["strict"]) == ("build/site", True)
    assert "mkdocs build --quiet --strict" in made
    assert SITE["theme"]["font"] is False


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert 100 <= len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
