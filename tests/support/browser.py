"""A real browser for the tests of the web page: one in each test process, and visitors who must see nothing go wrong.

A test that needs it is skipped where Playwright or a browser is missing, and fails in CI.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

import pytest

from support.http_server import TOKEN
from support.waiting import SOON

if find_spec("playwright") is None and not os.environ.get("CI"):
    pytest.skip("not installed: playwright, which is in the extra dev", allow_module_level=True)

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from playwright.sync_api import Locator as Locator
from playwright.sync_api import Route as Route

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no other host is there
)

SCREEN = {"width": 1360, "height": 860}
PHONE = {"width": 375, "height": 760}

SHOWN_FOR = 5000
"""Milliseconds after which the page takes away what it says of an action."""

PATIENCE = f"""
const later = window.setTimeout;
window.setTimeout = (call, time, ...rest) => later(call, time === {SHOWN_FOR} ? 1e6 : time, ...rest);
"""
"""Has these messages stay, as a busy machine may look for them later than a person would."""

expect.set_options(timeout=SOON * 1000)


def browser_program() -> str:
    """Where a browser is. Skips the test if there is none; fails in CI."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        reason = f"no browser is installed: none of {', '.join(PROGRAMS)}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class Desk(NamedTuple):
    """A browser, and a page that is there already: the first of each test, which spares a new process."""

    browser: Browser
    page: Page


@contextmanager
def browser() -> Iterator[Desk]:
    """A browser without a window. Between the tests that use it, asyncio can be used as if it weren't there."""
    program = browser_program()
    playwright = sync_playwright().start()
    started = playwright.chromium.launch(executable_path=program, args=list(OPTIONS))
    desk = Desk(started, new_context(started).new_page())
    asyncio._set_running_loop(None)
    yield desk
    with used(desk):
        started.close()
        playwright.stop()


@contextmanager
def used(desk: Desk) -> Iterator[None]:
    """While the block runs, the browser can be used: the loop of this thread is its own."""
    asyncio._set_running_loop(desk.browser._loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(None)


def new_context(started: Browser, **options: Any) -> BrowserContext:
    """What pages of one person share."""
    context = started.new_context(**{"viewport": SCREEN, **options})
    context.set_default_timeout(SOON * 1000)
    context.add_init_script(PATIENCE)
    return context


class Site(Protocol):
    """What is opened: a server, by its address."""

    @property
    def address(self) -> str: ...


class Recorded:
    """An application, and all that it has sent."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self.sent = bytearray()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def note(message: Any) -> None:
            self.sent += message.get("body", b"")
            await send(message)

        await self._application(scope, receive, note)


class Visitor:
    """Opens pages of servers, each as a person who comes for the first time. `faults` has what must never happen."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._is_at_desk = False
        self._contexts: list[BrowserContext] = []
        self._addresses: list[str] = []
        self._excused: list[str] = []
        self.requests: list[str] = []
        """The URLs that were asked for, in order."""
        self.faults: list[str] = []
        self._listeners: dict[str, Callable[..., None]] = {
            "console": lambda message: self._note_message(message.type, message.text),
            "weberror": lambda error: self._note(f"an error: {error.error}"),
            "dialog": self._refuse,
            "request": lambda request: self._note_request(request.url),
        }

    def open(self, server: Site, path: str = "/", *, token: str = TOKEN, **options: Any) -> Page:
        """A page, opened with the token as in the URL that the server prints; without it if it is empty."""
        page = self.arrive(server, **options)
        page.goto(address_of(server, path, token))
        return page

    def arrive(self, server: Site, **options: Any) -> Page:
        """An empty page of a person who has never been here."""
        self.knows(server)
        if not options and not self._is_at_desk:
            self._is_at_desk = True
            self._watch(self._desk.page.context)
            return self._desk.page
        context = new_context(self._desk.browser, **options)
        self._contexts.append(context)
        self._watch(context)
        return context.new_page()

    def knows(self, server: Site) -> None:
        """Another server that pages may ask."""
        self._addresses.append(server.address)

    def excuse(self, *patterns: str) -> None:
        """Messages of the browser that a test provokes."""
        self._excused += patterns

    def leave(self) -> None:
        """Close all pages, and leave nothing on the desk."""
        for context in self._contexts:
            context.close()
        if self._is_at_desk:
            page = self._desk.page
            page.unroute_all(behavior="ignoreErrors")
            page.evaluate("() => location.protocol === 'http:' && localStorage.clear()")
            page.goto("about:blank")
            page.mouse.move(0, 0)
            page.emulate_media(color_scheme="light", reduced_motion="no-preference")
            page.context.clear_cookies()
            for other in page.context.pages:
                if other != page:
                    other.close()
            for name, listener in self._listeners.items():
                page.context.remove_listener(name, listener)

    def _watch(self, context: BrowserContext) -> None:
        for name, listener in self._listeners.items():
            context.on(name, listener)  # type: ignore[call-overload]

    def _note_message(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self._note(f"{kind}: {text}")

    def _note(self, fault: str) -> None:
        if not any(re.search(pattern, fault) for pattern in self._excused):
            self.faults.append(fault)

    def _refuse(self, dialog: Any) -> None:
        self._note(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def _note_request(self, url: str) -> None:
        self.requests.append(url)
        parts = urlsplit(url)
        is_own = f"{parts.scheme}://{parts.netloc}" in self._addresses or parts.scheme in ("blob", "data")
        if not is_own:
            self._note(f"a request to another host: {url}")


def address_of(server: Site, path: str, token: str = TOKEN) -> str:
    """The URL of a page, with the token in its query."""
    if not token:
        return server.address + path
    sign = "&" if "?" in path else "?"
    return f"{server.address}{path}{sign}token={quote(token)}"


def answer_all(page: Page, held: list[Route]) -> None:
    """Let the requests through that were held, and wait until the page has their answers."""
    assert held
    for route in held:
        with page.expect_response(route.request.url):
            route.continue_()
    held.clear()
    await_frame(page)


def await_frame(page: Page) -> None:
    """Wait until the page shows what it knows."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
