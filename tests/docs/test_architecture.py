"""The page on architecture shows the layers as they are: drawn from the contract, and from what the code imports."""

from __future__ import annotations

import os
import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import grimp

import limpet

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = Path(limpet.__file__).parent
ANEW = "LIMPET_WRITE_DOCS"
BOX, BESIDE = 24, 80


def test_the_diagrams_of_the_layers_are_current() -> None:
    """Where this fails, run it once with LIMPET_WRITE_DOCS=1, and look at what changed."""
    text = PAGE.read_text(encoding="utf-8")
    library, engine = (contract["layers"] for contract in contracts()[:2])
    current = placed(text, "layers", drawn(library, imports()))
    current = placed(current, "layers of the engine", drawn(engine, {}))
    if os.environ.get(ANEW):
        PAGE.write_text(current, encoding="utf-8")
    assert text == current


def test_every_part_of_the_library_has_its_layer_and_is_explained() -> None:
    """Nothing can be added without a place."""
    parts = {
        path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    layers = {name for row in contracts()[0]["layers"] for name in names(row)}
    assert parts - {"__init__"} == layers
    table = PAGE.read_text(encoding="utf-8").partition("| layer | knows | does |")[2].partition("\n\n")[0]
    explained = {
        name for line in table.splitlines()[1:] for name in re.findall(r"`(\w+)/?`", line.split("|")[1])
    }
    assert layers - {"__main__", "version"} == explained


def test_every_module_of_the_engine_and_of_the_command_line_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8")
    modules = [path for part in ("engine", "cli") for path in (SOURCE / part).glob("[!_]*.py")]
    missing = [path.name for path in sorted(modules) if f"{path.name}`" not in text]
    assert missing == [], f"{PAGE.name} has a table for them: say in a line what each is"


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
    """A box for each layer, the highest first; beside it what its modules import, where that is known."""
    inner = BOX if imported else 76
    lines = [f"┌{'─' * inner}┐"]
    for number, layer in enumerate(layers):
        if number:
            lines.append(f"├{'─' * inner}┤")
        if not imported:
            lines += [
                f"│ {text.ljust(inner - 2)} │" for text in textwrap.wrap("   ".join(names(layer)), inner - 2)
            ]
            continue
        for name in names(layer):
            beside = textwrap.wrap(", ".join(imported[name]), BESIDE - 4) or [""]
            for first, text in zip([name, *[""] * len(beside)], beside, strict=False):
                arrow = " →" if first and text else "  "
                lines.append(f"│ {first.ljust(inner - 2)} │{arrow} {text}".rstrip())
    return "\n".join([*lines, f"└{'─' * inner}┘"]) + "\n"


def placed(page: str, mark: str, block: str) -> str:
    """The page with this in the block that has the mark."""
    opening = f"<!-- {mark} -->\n```text\n"
    before, found, after = page.partition(opening)
    assert found, f"the page has no block {mark!r}"
    return before + opening + block + "```\n" + after.partition("```\n")[2]
