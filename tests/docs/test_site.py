"""The site is complete: its navigation has every page once, and no page that doesn't exist."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

from support.site import Page, Site

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


def built_pages(site: Site) -> dict[str, Page]:
    folder = site.folder / "html"
    return {path.relative_to(folder).as_posix(): Page(path) for path in sorted(folder.rglob("*.html"))}


def test_the_site_is_whole(site: Site) -> None:
    """Each link, within pages, too, leads somewhere; a browser loads nothing from elsewhere.

    Each page can be shown light, dark, or as the system has it, and leads to the one before and the one after it.
    """
    made = built_pages(site)
    for name, page in made.items():
        for target in page.links:
            check_link(name, target, made, site.folder / "html")
        assert [each for each in page.loaded if re.match(r"(https?:)?//", each)] == [], name
        assert page.classes["md-option"] == 3, name
    order = [name.removesuffix(".md") + ".html" for name in pages(SITE["nav"])]
    for before, after in itertools.pairwise(order):
        assert made[before].classes["md-footer__link--next"] == 1, before
        assert made[after].classes["md-footer__link--prev"] == 1, after
    assert set(order) == made.keys() - {"404.html"}


def check_link(page: str, target: str, made: dict[str, Page], folder: Path) -> None:
    """Raise if a link of a page leads to a page, a file or an anchor that isn't there."""
    path, _, anchor = unquote(target).partition("#")
    if re.match(r"[a-z]+:", path):
        return
    found = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    found = found.removeprefix("limpet/").removeprefix("/limpet/")  # those of the page for what isn't found
    if found in made:
        assert not anchor or anchor in made[found].ids, f"{page} links to {target}"
    else:
        assert (folder / found).exists(), f"{page} links to {target}"


def test_styles_of_the_site_load_nothing_from_elsewhere(site: Site) -> None:
    for path in (site.folder / "html").rglob("*.css"):
        assert re.findall(r"url\([\"']?(?:https?:)?//|@import", path.read_text(encoding="utf-8")) == []


def test_the_site_follows_the_system_unless_a_reader_chooses() -> None:
    """Light or dark; and the code of examples can be copied."""
    first, light, dark = SITE["theme"]["palette"]
    assert first["media"] == "(prefers-color-scheme)"
    assert (light["scheme"], dark["scheme"]) == ("default", "slate")
    assert all(each["toggle"]["name"] for each in (first, light, dark))
    assert {"content.code.copy", "navigation.footer"} <= set(SITE["theme"]["features"])
    assert "search" in SITE["plugins"]
