"""The screenshots of the documentation. `PYTHONPATH=src:tests python -m support.screenshots` makes them again.

They need a chromium. Names of pictures after the command make only these; `--into FOLDER` puts them somewhere else.
With `--sharpness 1` they are half as wide and high, which is quicker.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from playwright.sync_api import Browser, Page

from limpet import MemoryStore
from limpet.engine.operations import run_info
from limpet.server.question_links import QuestionLink, seal_link
from support.browser import address_of, browser, used
from support.http_server import Served, served
from support.palette_png import with_palette
from support.pictures import article
from support.shown_runs import NOW, ShownRuns, clock, dated_by

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"

DESK = {"width": 1280, "height": 860}
LOW = {"width": 1280, "height": 720}
LOWEST = {"width": 1280, "height": 560}
NARROW = {"width": 820, "height": 780}
SMALL = {"width": 375, "height": 620}
SHARPNESS = 2
"""Pixels of a picture for each of the page, in both directions."""

PROCESS = "process 4711 on worker-2"
"""What executes the run that is under way."""

PLACES = {
    str(ROOT / "tests" / "support" / "shown_runs.py"): "research.py",
    "shown_runs.py": "research.py",
    str(ROOT / "src"): ".venv/lib/python3.13/site-packages",
}
"""What is shown in place of the paths of this machine."""

REPLACE_TEXTS = """
places => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode())
    for (const [place, shown] of Object.entries(places))
      if (text.data.includes(place)) text.data = text.data.replaceAll(place, shown);
}
"""


class Camera:
    """Opens pages at the time of the pictures, and takes pictures of them."""

    def __init__(self, started: Browser, server: Served, folder: Path, sharpness: int) -> None:
        self._browser = started
        self._server = server
        self._folder = folder
        self._sharpness = sharpness

    @contextmanager
    def page(
        self, path: str, now: datetime = NOW, size: dict[str, int] = DESK, **options: Any
    ) -> Iterator[Page]:
        """A page, when it has all that it shows."""
        context = self._browser.new_context(
            viewport=size,
            device_scale_factor=self._sharpness,
            timezone_id="UTC",
            locale="en",
            reduced_motion="reduce",
            **options,
        )
        page = context.new_page()
        page.clock.set_fixed_time(now)
        page.goto(address_of(self._server, path))
        yield page
        context.close()

    def take(self, page: Page, name: str) -> None:
        """Save what is seen."""
        page.evaluate(REPLACE_TEXTS, PLACES)
        screenshot = page.screenshot(animations="disabled", caret="hide")
        content = with_palette(self._browser, screenshot)
        (self._folder / name).write_bytes(content)
        print(f"{name}: {len(content):,} bytes")


def runs(camera: Camera, shown: ShownRuns) -> None:
    with camera.page("/") as page:
        page.get_by_text("Waiting for you").wait_for()
        page.locator(".live-on").wait_for()
        camera.take(page, "page-runs.png")


def run(camera: Camera, shown: ShownRuns) -> None:
    with camera.page("/runs/rocky-shores") as page:
        page.get_by_text("3 failed").first.wait_for()
        page.locator(".panel-error").wait_for()
        page.locator(".times").wait_for()
        camera.take(page, "page-run.png")


def run_dark(camera: Camera, shown: ShownRuns) -> None:
    with camera.page("/runs/catalogue-11?view=graph", size=LOW, color_scheme="dark") as page:
        page.locator(".picture .chosen").wait_for()
        page.get_by_text("changed", exact=True).first.click()
        page.get_by_text("logs").click()
        page.get_by_label("reason").fill("new photos of 13 goods")
        page.get_by_placeholder("your name").fill("ann")
        page.evaluate("document.activeElement.blur()")
        page.locator(".times").wait_for()
        camera.take(page, "page-run-dark.png")


def fork(camera: Camera, shown: ShownRuns) -> None:
    with camera.page("/runs/rocky-shores") as page:
        page.locator(".timeline-row", has_text="combine").click()
        page.get_by_role("button", name="fork before this step").click()
        page.get_by_label("id of the new run").fill("rocky-shores-large")
        page.locator("textarea[name=model]").fill('"large"')
        camera.take(page, "page-fork.png")


def compare(camera: Camera, shown: ShownRuns) -> None:
    shown.fork()
    later = NOW + timedelta(seconds=clock() - NOW.timestamp() + 20)
    with camera.page("/compare?a=rocky-shores&b=rocky-shores-large", later, LOWEST) as page:
        page.locator(".diff").wait_for()
        camera.take(page, "page-compare.png")


def phone(camera: Camera, shown: ShownRuns) -> None:
    with camera.page(link_to(shown, "sponges"), size=SMALL, is_mobile=True, has_touch=True) as page:
        page.get_by_text("This link ends").wait_for()
        camera.take(page, "page-phone.png")


def notebook(camera: Camera, shown: ShownRuns) -> None:
    run = article().compile(store=MemoryStore()).invoke(ESSAY, run_id="kelp-1")
    run.wait()
    theme = 'data-jp-theme-light="true" style="margin:0"'
    with camera.page("/", size=NARROW) as page:
        page.goto("about:blank")
        page.set_content(f"<!doctype html><body {theme}>{run._repr_html_()}</body>")
        camera.take(page, "page-notebook.png")


ESSAY = {
    "topic": "kelp",
    "sources": ["field notes", "herbarium", "three interviews"],
    "text": "All about kelp.\n\n" + "Kelp is an alga, and a forest at the same time. " * 40,
}


def link_to(shown: ShownRuns, run_id: str) -> str:
    """The path of a page with which the question of a run can be answered."""
    info = shown.runs.get(run_id).info
    expires = (NOW + timedelta(days=7)).timestamp()
    link = QuestionLink(run_id, info.created, info.questions[0].id, expires, "ann")
    return f"/answer/{seal_link(shown.store, link)}"


PICTURES: list[Callable[[Camera, ShownRuns], None]] = [runs, run, run_dark, fork, phone, compare, notebook]
"""In the order in which they are taken: a fork, which `compare` makes, isn't seen in the others."""

NAMES = [each.__name__ for each in PICTURES]


def main(words: list[str]) -> None:
    """Make the pictures with these names, or all."""
    parser = ArgumentParser(prog="python -m support.screenshots")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--into", type=Path, default=IMAGES, metavar="FOLDER")
    parser.add_argument("--sharpness", type=int, default=SHARPNESS, metavar="N")
    wanted = parser.parse_args(words)
    if unknown := set(wanted.names) - set(NAMES):
        parser.error(f"no such picture: {', '.join(unknown)}. There are {', '.join(NAMES)}")
    shown = ShownRuns()
    with dated_by(clock):
        shown.fill()
        graphs = shown.graphs.values()
        holder = patch.object(run_info, "describe_holder", lambda _: PROCESS)
        with (
            shown.at_work(),
            holder,
            served(shown.store, graphs) as server,
            browser() as desk,
            used(desk),
        ):
            camera = Camera(desk.browser, server, wanted.into, wanted.sharpness)
            for take in PICTURES:
                if not wanted.names or take.__name__ in wanted.names:
                    take(camera, shown)


if __name__ == "__main__":
    main(sys.argv[1:])
