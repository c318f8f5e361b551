"""What the command line serves, opened in a real browser."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import limpet
from limpet import Runs
from support.browser import Visitor, expect
from support.waiting import SOON


class Place(NamedTuple):
    """Where a command serves."""

    address: str
    url: str


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    """Start a command that serves, and return where."""
    begun: list[subprocess.Popen[str]] = []
    path = str(Path(limpet.__file__).parents[1])
    kept = {name: value for name, value in os.environ.items() if "LIMPET" not in name}

    def start(*words: str) -> Place:
        process = subprocess.Popen(
            [sys.executable, "-m", "limpet", *words, "--json"],
            cwd=tmp_path, text=True, env={**kept, "PYTHONPATH": path},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        begun.append(process)
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        return Place(f"http://{said['host']}:{said['port']}", said["url"])

    yield start
    for process in begun:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SOON)


def test_an_exported_run_is_opened_at_its_own_page(
    samples: Any, command: Callable[..., Place], visitor: Visitor, tmp_path: Path
) -> None:
    """H20: without a store and without code, and nothing can be changed."""
    Runs(samples.store).export("rocks-5", tmp_path / "rocks.run")
    place = command("serve", "rocks.run", "--no-browser", "--port", "0")
    page = visitor.arrive(place)
    page.goto(place.url)
    expect(page.get_by_role("heading", name="rocks-5")).to_be_visible()
    assert page.url == f"{place.address}/runs/rocks-5"
    expect(page.get_by_role("region", name="error")).to_contain_text("no rating for “rocks”")
    expect(page.get_by_role("treeitem", selected=True)).to_contain_text("rate")
    expect(page.get_by_role("button", name="retry")).to_have_count(0)
    expect(page.get_by_text("read-only")).to_be_visible()
    page.get_by_role("tab", name="graph").click()
    expect(page.get_by_text("The server doesn't have the code of this graph")).to_be_visible()


def test_the_demonstration_is_answered_in_the_browser(
    command: Callable[..., Place], visitor: Visitor
) -> None:
    """H20: its run continues as soon as it is."""
    place = command("demo", "--serve", "--fast", "--dir", "shown")
    page = visitor.arrive(place)
    page.goto(place.url)
    expect(page.get_by_role("heading", name="kelp-0")).to_be_visible()
    page.get_by_role("region", name="questions").get_by_role("button", name="yes").click()
    expect(page.get_by_role("treeitem").filter(has_text="publish")).to_be_visible()
    expect(page.get_by_role("main").get_by_role("img", name="completed").first).to_be_visible()
