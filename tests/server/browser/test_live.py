"""Runs that are watched in a real browser while other processes execute them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import open_store
from support import sample_runs
from support.browser import Page, Visitor, expect
from support.http_server import served
from support.waiting import SOON, until

Work = Callable[[], "subprocess.Popen[bytes]"]

STEPS = 50


class Ticking:
    """A run whose steps a test allows, in a store that processes share."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/runs.db"
        self.store = open_store(self.url)
        self.graph = sample_runs.ticking().compile(store=self.store, preserve=True)
        self._allowed = folder / "allowed"
        self.allow(0)
        given = {"until": STEPS, "allowed": str(self._allowed)}
        self.handle = self.graph.start(given, run_id="ticking-1")

    def allow(self, steps: int) -> None:
        """Let it do as many steps."""
        written = self._allowed.with_suffix(".new")
        written.write_text(str(steps))
        written.rename(self._allowed)

    def wait_for(self, steps: int) -> None:
        """Wait until the store has as many."""
        until(lambda: self.handle.info.step >= steps, f"step {steps}")


@pytest.fixture
def ticking(tmp_path: Path) -> Iterator[Ticking]:
    run = Ticking(tmp_path)
    yield run
    run.store.close()


@pytest.fixture
def work(ticking: Ticking) -> Iterator[Work]:
    """Start a worker in a process of its own."""
    processes: list[subprocess.Popen[bytes]] = []
    places = [str(Path(limpet.__file__).parents[1]), str(Path(sample_runs.__file__).parents[1])]

    def start() -> subprocess.Popen[bytes]:
        command = ["worker", "support.sample_runs:ticking", "--store", ticking.url, "--poll", "0.1"]
        process = subprocess.Popen(
            [sys.executable, "-m", "limpet", *command],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
            stderr=subprocess.DEVNULL,
        )
        processes.append(process)
        return process

    yield start
    ticking.allow(STEPS)
    for process in processes:
        process.kill()
        process.wait(SOON)


def status(page: Page, words: str) -> None:
    """Wait until the head of the page has a status."""
    expect(page.get_by_role("main").get_by_role("img", name=words).first).to_be_visible()


def place_of_first_row(page: Page) -> Any:
    return page.get_by_role("treeitem").first.bounding_box()


def test_a_run_whose_worker_is_killed_is_watched_to_its_end(
    ticking: Ticking, work: Work, serve: Any, visitor: Visitor
) -> None:
    """H20: steps appear as they are saved, and nothing moves: neither rows, nor what is scrolled and selected."""
    page = visitor.open(serve(ticking.store, [ticking.graph]), "/runs/ticking-1")
    status(page, "queued")
    page.evaluate("window.isSame = true")
    first = work()
    expect(page.get_by_role("treeitem", name="tick")).to_be_visible()
    status(page, "running")
    ticking.allow(30)
    expect(page.get_by_text("30 rows")).to_be_visible()
    expect(page.get_by_role("treeitem", selected=True)).to_be_in_viewport()

    page.get_by_role("tree", name="steps").hover()
    page.mouse.wheel(0, -100_000)
    expect(page.get_by_role("treeitem").first).to_be_in_viewport()
    page.get_by_role("treeitem").nth(4).click()
    expect(page).to_have_url(re.compile(r"row=\d+$"))
    page.mouse.wheel(0, 45)
    until(lambda: page.get_by_role("tree", name="steps").evaluate("(tree) => tree.scrollTop") == 45)
    place = place_of_first_row(page)
    chosen = page.get_by_role("treeitem", selected=True).get_attribute("id")

    first.kill()
    first.wait(SOON)
    status(page, "abandoned")
    work()
    ticking.allow(STEPS)
    status(page, "completed")
    expect(page.get_by_text(f"{STEPS} rows")).to_be_visible()
    assert place_of_first_row(page) == place
    assert page.get_by_role("treeitem", selected=True).get_attribute("id") == chosen
    assert page.get_by_role("tree", name="steps").evaluate("(tree) => tree.scrollTop") == 45
    assert page.evaluate("window.isSame")
    assert ticking.handle.state["count"] == STEPS


def test_a_paused_page_asks_for_nothing_and_then_catches_up(
    ticking: Ticking, work: Work, serve: Any, visitor: Visitor
) -> None:
    """H20: on the page of a run, and on the list."""
    page = visitor.open(serve(ticking.store, [ticking.graph]), "/runs/ticking-1")
    work()
    ticking.allow(5)
    expect(page.get_by_text("5 rows")).to_be_visible()
    selected = page.get_by_role("complementary", name="the selected step")
    expect(selected.get_by_text("step 5", exact=True)).to_be_visible()
    expect(selected.get_by_role("listitem").filter(has_text="count")).to_contain_text("5")
    page.get_by_role("button", name="live").click()
    expect(page.get_by_role("button", name="paused")).to_have_attribute("aria-pressed", "false")
    before = list(visitor.requests)
    ticking.allow(20)
    ticking.wait_for(20)
    expect(page.get_by_text("5 rows")).to_be_visible()
    assert visitor.requests == before
    page.get_by_role("button", name="paused").click()
    expect(page.get_by_text("20 rows")).to_be_visible()

    page.get_by_role("link", name="runs", exact=True).click()
    expect(page.get_by_role("row", name="running ticking")).to_be_visible()
    page.get_by_role("button", name="live").click()
    before = list(visitor.requests)
    ticking.allow(STEPS)
    until(lambda: ticking.handle.status == "completed")
    expect(page.get_by_role("row", name="running ticking")).to_be_visible()
    assert visitor.requests == before
    page.get_by_role("button", name="paused").click()
    expect(page.get_by_role("row", name="completed ticking")).to_be_visible()


def test_a_selection_that_the_reader_did_not_make_follows_the_run(
    ticking: Ticking, work: Work, serve: Any, visitor: Visitor
) -> None:
    """H20."""
    page = visitor.open(serve(ticking.store, [ticking.graph]), "/runs/ticking-1")
    work()
    ticking.allow(3)
    step = page.get_by_role("complementary", name="the selected step")
    expect(step).to_contain_text("step 3")
    ticking.allow(40)
    expect(step).to_contain_text("step 40")
    expect(page.get_by_role("treeitem", selected=True)).to_be_in_viewport()


def test_a_page_whose_server_went_away_says_so(samples: Any, visitor: Visitor) -> None:
    """H20: what it has shown stays."""
    visitor.excuse("net::ERR_")
    with served(samples.store, samples.graphs.values()) as server:
        page = visitor.open(server)
        expect(page.get_by_role("button", name="live")).to_be_visible()
        expect(page.get_by_role("link", name="rocks-5")).to_be_visible()
    expect(page.get_by_role("button", name="lost")).to_be_visible()
    expect(page.get_by_role("link", name="rocks-5")).to_be_visible()
    page.get_by_role("link", name="graphs").click()
    # The list may have said it already.
    expect(page.get_by_text("the server doesn't answer: is limpet serve still running?").last).to_be_visible()


def test_a_reader_who_looks_elsewhere_is_not_pulled_back(
    ticking: Ticking, work: Work, serve: Any, visitor: Visitor
) -> None:
    """H20: while the newest step is shown beside the timeline, which follows again from its end on."""
    page = visitor.open(serve(ticking.store, [ticking.graph]), "/runs/ticking-1")
    work()
    ticking.allow(35)
    expect(page.get_by_text("35 rows")).to_be_visible()
    expect(page.get_by_role("treeitem", selected=True)).to_be_in_viewport()
    tree = page.get_by_role("tree", name="steps")
    tree.hover()
    page.mouse.wheel(0, -100_000)
    expect(page.get_by_role("treeitem").first).to_be_in_viewport()
    step = page.get_by_role("complementary", name="the selected step")
    for number in (36, 40):
        ticking.allow(number)
        expect(step).to_contain_text(f"step {number}")
        assert tree.evaluate("(tree) => tree.scrollTop") == 0
    page.mouse.wheel(0, 100_000)
    expect(page.get_by_role("treeitem").last).to_be_in_viewport()
    ticking.allow(45)
    expect(step).to_contain_text("step 45")
    expect(page.get_by_role("treeitem", selected=True)).to_be_in_viewport()
