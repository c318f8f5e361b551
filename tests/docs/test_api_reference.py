"""The reference of the API has everything that is public, as it is in the code, each with an anchor of its own.

Its pages name the objects; their signatures and texts are read from the code when the site is built. What is beside a
name in a table is the first sentence of its docstring.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

import limpet
from limpet import (
    AsyncRun,
    Limits,
    LimpetError,
    NodeContext,
    Run,
    RunHandle,
    Runs,
    Schedules,
    State,
    StateGraph,
    Supervisor,
    Workflow,
    observe,
    server,
    testing,
)
from limpet.compile_options import WorkflowOptions
from limpet.engine.node_context.questions import NOT_GIVEN
from support.site import REFERENCE, ROOT, Site, objects_of_reference

WRITE_DOCS = "LIMPET_WRITE_DOCS"
INDEX = REFERENCE.with_name("api.md")
SOURCE = "https://github.com/limpet-graphs/limpet/blob/main/"
CLASSES = (
    StateGraph,
    Workflow,
    Run,
    AsyncRun,
    RunHandle,
    Runs,
    Supervisor,
    State,
    NodeContext,
    Limits,
    Schedules,
)
INTERNAL = {
    "compiled",
    "freeze",
    "of_graph",
    (NodeContext, "call"),
    (NodeContext, "offer"),
    (NodeContext, "close"),
}
OF_DICT = set(vars(dict))
"""What a State has because it is a dict."""

LINKED = re.compile(r"\[`\w+`\]\(#([\w.]+)\)")


def public_methods(cls: type) -> Iterator[tuple[str, Any]]:
    for name, member in inspect.getmembers(cls):
        is_method = inspect.isfunction(member) or inspect.ismethod(member) or isinstance(member, property)
        if is_method and not name.startswith("_") and not {name, (cls, name)} & INTERNAL:
            yield name, member


def test_every_public_name_is_in_the_reference() -> None:
    """Of `limpet`, and of the packages that have names of their own; errors are on a page of theirs."""
    found = objects_of_reference().keys()
    wanted = {f"limpet.{name}" for name in limpet.__all__ if not is_error(name)}
    wanted |= {f"limpet.{name}" for name in ("START", "END")}
    for package in (observe, testing):
        wanted |= {f"{package.__name__}.{name}" for name in package.__all__ if name not in limpet.__all__}
    wanted -= {"limpet.testing.effects"}
    assert wanted - found == set()
    assert {"limpet.server.app", "limpet.testing.effects.record"} <= found
    assert server.app is not None


def is_error(name: str) -> bool:
    found = getattr(limpet, name)
    return isinstance(found, type) and issubclass(found, LimpetError)


def test_every_object_of_the_reference_exists() -> None:
    for path in objects_of_reference():
        module, _, name = path.rpartition(".")
        assert hasattr(import_module(module), name), path


def test_every_object_of_the_reference_says_what_it_is(site: Site) -> None:
    assert [path for path in objects_of_reference() if not site.sentences[path]] == []


def test_the_tables_of_the_reference_are_current(site: Site) -> None:
    """Where this fails, run it once with LIMPET_WRITE_DOCS=1, and look at what changed."""
    outdated = []
    for page in sorted({*objects_of_reference().values(), INDEX}):
        text = page.read_text(encoding="utf-8")
        lines = [with_sentence(line, site) for line in text.splitlines()]
        current = "\n".join(lines) + "\n"
        if page == INDEX:
            before, _, rest = current.partition("<!-- names -->\n")
            after = rest.partition("<!-- end of names -->\n")[2]
            current = f"{before}<!-- names -->\n{all_names(site)}\n<!-- end of names -->\n{after}"
        if current != text:
            outdated.append(page.name)
            if os.environ.get(WRITE_DOCS):
                page.write_text(current, encoding="utf-8")
    assert outdated == []


def with_sentence(line: str, site: Site) -> str:
    """A row of a table of members, with the first sentence of the docstring of the first one."""
    names, _, _ = line.removeprefix("| ").partition(" | ")
    found = LINKED.match(names)
    if not line.startswith("| ") or found is None:
        return line
    return f"| {names} | {site.sentences[found[1]]} |"


def all_names(site: Site) -> str:
    """A table of the objects of each page: where they are described, what they are, and where their code is."""
    parts = []
    for page in site_pages():
        title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# API: ")
        heading = f"## {title[0].upper()}{title[1:]}\n\n| name | what it is | code |\n|---|---|---|\n"
        rows = [row(path, site) for path, place in objects_of_reference().items() if place == page]
        parts.append(heading + "\n".join(rows))
    return "\n" + "\n\n".join(parts) + "\n"


def site_pages() -> list[Any]:
    """The pages of the reference, in the order of the navigation."""
    named = re.findall(r"reference/api/(\w+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return [REFERENCE / name for name in named]


def row(path: str, site: Site) -> str:
    page = objects_of_reference()[path]
    text = page.read_text(encoding="utf-8")
    title = re.findall(r"^## (.+)$", text.partition(f"\n::: {path}\n")[0], re.M)[-1]
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    shown = title if path == f"limpet.{title}" else path
    name = f"[`{shown}`](api/{page.name}#{anchor})"
    return f"| {name} | {site.sentences[path]} | [code]({SOURCE}{site.sources[path]}) |"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_public_method_has_an_anchor_its_parameters_and_a_row(cls: type, site: Site) -> None:
    place = objects_of_reference()[f"limpet.{cls.__name__}"]
    listed = set(LINKED.findall(place.read_text(encoding="utf-8")))
    page = site.page(f"reference/api/{place.stem}.html")
    for name, member in public_methods(cls):
        if cls is State and name in OF_DICT - {"copy"}:
            continue
        path = f"limpet.{cls.__name__}.{name}"
        assert path in page.ids
        assert path in listed
        if not isinstance(member, property):
            check_signature(member, page.signatures[path], path)


def check_signature(function: Any, shown: str, path: str) -> None:
    """Each parameter is in the signature, with its default."""
    text = shown.strip().removeprefix("async ").replace("…", "...")
    parsed = ast.parse(f"def {text}: pass").body[0]
    assert isinstance(parsed, ast.FunctionDef)
    found = parameters_of(parsed.args)
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self" or "Unpack" in str(parameter.annotation):
            continue  # in place of what is unpacked, its keys are shown
        wanted = default_of(parameter)
        assert found.get(name, "nothing") == wanted, (path, name)


def parameters_of(given: ast.arguments) -> dict[str, str | None]:
    """The defaults, as they are written, by the names of parameters."""
    placed = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(placed) - len(given.defaults)) + [*given.defaults]
    pairs = [*zip(placed, defaults, strict=True), *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    others = [each.arg for each in (given.vararg, given.kwarg) if each is not None]
    found = {each.arg: None if default is None else ast.unparse(default) for each, default in pairs}
    return {**found, **dict.fromkeys(others)}


def default_of(parameter: inspect.Parameter) -> str | None:
    default = parameter.default
    if default is parameter.empty:
        return None
    if isinstance(default, type):
        return default.__name__
    if type(default) is object or default is NOT_GIVEN:
        return "..."
    return repr(default)


@pytest.mark.parametrize("call", ["limpet.Workflow", "limpet.Workflow.compile"])
def test_every_setting_of_a_workflow_is_in_its_signature(call: str, site: Site) -> None:
    """H18."""
    shown = site.page("reference/api/graphs.html").signatures[call]
    assert [name for name in WorkflowOptions.__annotations__ if f"    {name}: " not in shown] == []
