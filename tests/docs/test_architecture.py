"""The page on architecture is true: its diagram is drawn from the code, and every file and folder it names exists."""

from __future__ import annotations

import os
import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import grimp

import limpet
from limpet.journal import records

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = Path(limpet.__file__).parent
WRITE_DOCS = "LIMPET_WRITE_DOCS"
BOX = 24
IMPORTS_WIDTH = 80


def test_the_diagram_of_the_layers_is_current() -> None:
    """Where this fails, run it once with LIMPET_WRITE_DOCS=1, and look at what changed."""
    text = PAGE.read_text(encoding="utf-8")
    current = placed(text, "layers", drawn(contracts()[0]["layers"], imports()))
    if os.environ.get(WRITE_DOCS):
        PAGE.write_text(current, encoding="utf-8")
    assert text == current


def test_every_part_of_the_library_has_its_layer() -> None:
    """Nothing can be added without a place."""
    parts = {
        path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    layers = {name for row in contracts()[0]["layers"] for name in names(row)}
    assert parts - {"__init__"} == layers


def test_every_folder_is_explained() -> None:
    """By a paragraph of its own, or in that of the folder around it."""
    text = PAGE.read_text(encoding="utf-8")
    folders = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("__init__.py")}
    explained = set(re.findall(r"^\*\*`([\w/]+)/`\*\*", text, re.MULTILINE))
    assert explained - {"limpet"} <= folders
    one_for_each_store = {f"stores/{name}" for name in ("files", "postgres", "redis", "sqlite")}
    missing = [
        folder
        for folder in folders - {".", "engine"} - one_for_each_store
        if folder not in explained and f"`{folder.rpartition('/')[2]}/`" not in text
    ]
    assert missing == []


def test_every_file_that_is_named_exists() -> None:
    """To change X, open Y: Y is there."""
    text = PAGE.read_text(encoding="utf-8")
    files = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    last_parts = {path.rpartition("/")[2] for path in files}
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    assert len(named) > 60
    missing = [path for path in named if path not in files and ("/" in path or path not in last_parts)]
    assert missing == []
    folders = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")} | {"limpet"}
    table = text.partition("| to change | open |")[2].partition("\n\n")[0]
    assert len(table.splitlines()) > 25
    absent = [path for path in re.findall(r"`([\w/]+)/`", table) if path not in folders]
    assert absent == []


def test_every_kind_of_record_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## The journal")[2]
    listed = re.findall(r"^\| `([A-Z]+)` \|", text, re.MULTILINE)
    kinds = [
        name
        for name, value in vars(records).items()
        if name.isupper() and not name.startswith("_") and type(value) is int
    ]
    assert sorted(listed) == sorted(kinds)


def contracts() -> list[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return found


def names(layer: str) -> list[str]:
    """The modules of one line of a contract."""
    return [name.strip(" ()").removeprefix("limpet.") for name in re.split("[|:]", layer)]


def imports() -> dict[str, list[str]]:
    """What each part of the library imports of the others, at once or later; names for type checkers don't count."""
    graph = grimp.build_graph("limpet", cache_dir=None, exclude_type_checking_imports=True)
    parts = graph.find_children("limpet")
    for part in parts:
        graph.squash_module(part)
    return {
        part.removeprefix("limpet."): sorted(
            each.removeprefix("limpet.")
            for each in graph.find_modules_directly_imported_by(part)
            if each in parts and each != part
        )
        for part in parts
    }


def drawn(layers: list[str], imported: dict[str, list[str]]) -> str:
    """A box for each layer, the highest first; next to it what its modules import."""
    lines = [f"┌{'─' * BOX}┐"]
    for number, layer in enumerate(layers):
        if number:
            lines.append(f"├{'─' * BOX}┤")
        for name in names(layer):
            parts = textwrap.wrap(", ".join(imported[name]), IMPORTS_WIDTH - 4) or [""]
            for first, text in zip([name, *[""] * len(parts)], parts, strict=False):
                arrow = " →" if first and text else "  "
                lines.append(f"│ {first.ljust(BOX - 2)} │{arrow} {text}".rstrip())
    return "\n".join([*lines, f"└{'─' * BOX}┘"]) + "\n"


def placed(page: str, mark: str, block: str) -> str:
    """The page with this in the block that has the mark."""
    opening = f"<!-- {mark} -->\n```text\n"
    before, found, after = page.partition(opening)
    assert found, f"the page has no block {mark!r}"
    return before + opening + block + "```\n" + after.partition("```\n")[2]
