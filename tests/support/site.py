"""The documentation as a site, built once for all test processes, with what the reference knows of the code."""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple
from unittest import mock

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference" / "api"
FACTS = "facts.json"
VOID = {"br", "img", "input", "wbr"}
BUILDING = 110.0
"""Seconds that another process may take to build it: nearly as long as a test may take."""


class Site(NamedTuple):
    """Where the site is, and what the reference knows of each of its objects and their members, by their paths.

    `sentences` are the first ones of the docstrings, `sources` the files with the code.
    """

    folder: Path
    sentences: dict[str, str]
    sources: dict[str, str]

    def page(self, name: str) -> Page:
        """A page, by its path in the site."""
        return Page(self.folder / "html" / name)


def built_site(folder: Path) -> Site:
    """Build the site in this folder, or wait until the process has built it that came first."""
    facts = folder / FACTS
    try:
        folder.mkdir()
    except FileExistsError:
        deadline = monotonic() + BUILDING
        while not (facts.exists() or (folder / "failed").exists()) and monotonic() < deadline:
            sleep(0.1)
    else:
        try:
            _build(folder)
        except BaseException:
            (folder / "failed").touch()
            raise
    assert facts.exists(), "the site couldn't be built: see the test that did it"
    return Site(folder, *json.loads(facts.read_text(encoding="utf-8")))


def _build(folder: Path) -> None:
    """Build all pages, strictly. In this process: it also has what Griffe knows then, which no page says."""
    with warnings.catch_warnings(), mock.patch.dict(os.environ, NO_MKDOCS_2_WARNING="1"):
        warnings.simplefilter("ignore")  # of packages that build it; a warning about a page fails the build
        from mkdocs.commands.build import build
        from mkdocs.config import load_config

        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder / "html"), strict=True)
        config.plugins.run_event("startup", command="build", dirty=False)
        try:
            build(config)
            found = dict(_objects(config.plugins["mkdocstrings"]))
        finally:
            config.plugins.run_event("shutdown")
    made = folder / "making"
    sentences = {path: _first_sentence(each) for path, each in found.items()}
    sources = {path: str(each.filepath.relative_to(ROOT)) for path, each in found.items()}
    made.write_text(json.dumps([sentences, sources]), encoding="utf-8")
    made.rename(folder / FACTS)


def _objects(plugin: Any) -> Iterator[tuple[str, Any]]:
    """The objects of the reference and their members, as Griffe has read them, by their paths."""
    handler = plugin.handlers.get_handler("python")
    for path in objects_of_reference():
        found = handler.collect(path, handler.get_options({}))
        yield path, found
        if found.is_class:
            for name, member in found.all_members.items():
                yield f"{path}.{name}", member


def _first_sentence(found: Any) -> str:
    if found.docstring is None:
        return ""
    paragraph = " ".join(found.docstring.value.partition("\n\n")[0].split())
    sentence, stop, _ = paragraph.partition(". ")
    return sentence + stop.strip()


def objects_of_reference() -> dict[str, Path]:
    """What the pages of the reference document, each with its page."""
    return {
        line.removeprefix("::: ").strip(): page
        for page in sorted(REFERENCE.glob("*.md"))
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("::: ")
    }


class Page(HTMLParser):
    """Of a built page: its ids, links, classes, what a browser would load, and the signatures by their anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.classes: Counter[str] = Counter()
        self.signatures: dict[str, str] = {}
        self._object = ""
        self._depth = 0  # of tags within a signature
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        self.classes.update(given.get("class", "").split())
        if given.get("id", "").startswith("limpet."):
            self._object = given["id"]
        if self._depth or "doc-signature" in given.get("class", ""):
            self._depth += tag not in VOID
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(given["href"])
        self.loaded += [given[name] for name in ("src", "srcset", "data-src") if name in given]

    def handle_endtag(self, tag: str) -> None:
        self._depth = max(0, self._depth - 1)

    def handle_data(self, data: str) -> None:
        if self._depth:
            self.signatures[self._object] = self.signatures.get(self._object, "") + data
