"""H20: the files of the web page, as any client gets them."""

from __future__ import annotations

import gzip
import json
import posixpath
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from limpet import MemoryStore
from limpet.server import app
from limpet.server.page_files import PageFiles
from limpet.server.page_routes import ANSWER_PAGE, PAGES

TOKEN = "a token of the tests"
ROOT = Path(__file__).parents[2]
FOLDER = Path(str(files("limpet.server").joinpath("page")))
SOURCES = sorted(path for path in FOLDER.rglob("*") if path.is_file())

PARTS_OF_A_PAGE = re.compile(r'(?:src|href)="([^"]+)"')
IMPORTED = re.compile(r'(?:from|import) ?"(\.[^"]+)"')

SYNTAX = """
const { SourceTextModule } = require("vm");
let text = "";
process.stdin.on("data", (part) => (text += part)).on("end", () => {
  for (const [path, code] of Object.entries(JSON.parse(text))) new SourceTextModule(code, { identifier: path });
});
"""

MOST_BYTES = 60 * 1024
"""What a browser loads the first time, compressed."""


@pytest.fixture
def client() -> Iterator[TestClient]:
    application = app(MemoryStore(), token=TOKEN)
    with TestClient(application, base_url="http://localhost:8000") as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        yield client


def scripts(client: TestClient) -> dict[str, str]:
    """All modules that the page loads, by their paths, as they are sent."""
    waiting = [path for path in PARTS_OF_A_PAGE.findall(client.get("/").text) if path.endswith(".js")]
    found: dict[str, str] = {}
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        answer = client.get(path)
        assert answer.status_code == 200, path
        found[path] = answer.text
        folder = posixpath.dirname(path)
        waiting += [posixpath.normpath(f"{folder}/{each}") for each in IMPORTED.findall(answer.text)]
    return found


@pytest.mark.parametrize("path", [*PAGES, ANSWER_PAGE, "/runs/%2e%2e%2fetc", "/graphs/<script>"])
def test_every_page_is_one_document_without_scripts_of_its_own(client: TestClient, path: str) -> None:
    """H20: a strict policy, and nothing of the address in it; what it shows, it asks for."""
    answer = client.get(re.sub(r"\{\w+\}", "x", path))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; ")
    assert "unsafe" not in policy
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-frame-options"] == "DENY"
    text = answer.text
    assert text == client.get("/").text
    assert re.search(r"<style|\sstyle=|\son\w+=|javascript:", text) is None
    assert re.findall(r"<script(?![^>]* src=)", text) == []
    assert all(place.startswith("/static/") for place in PARTS_OF_A_PAGE.findall(text))
    assert "{{" not in text


def test_a_browser_without_the_token_gets_the_document_and_status_401(client: TestClient) -> None:
    """H20: the document has no data. The page of a link to a question is for strangers."""
    del client.headers["authorization"]
    assert client.get("/runs/x").status_code == 401
    assert client.get("/answer/x").status_code == 200
    assert client.get("/?token=wrong").status_code == 401
    answer = client.get(f"/runs/a%2Fb?q=x%20y&token={TOKEN}&z=1", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs/a%2Fb?q=x%20y&z=1")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie


def test_files_are_kept_for_ever_under_a_hash_of_their_contents(client: TestClient) -> None:
    """H20: compressed for clients that take that, and the same for others."""
    page = PageFiles()
    places = [*PARTS_OF_A_PAGE.findall(client.get("/").text), *scripts(client)]
    assert len(places) > 10
    for place in places:
        assert place.startswith(f"/static/{page.hash}/")
        plain = client.get(place, headers={"accept-encoding": "identity"})
        packed = client.get(place, headers={"accept-encoding": "gzip, br"})
        assert plain.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert "accept-encoding" in plain.headers["vary"].lower()
        assert plain.headers["x-content-type-options"] == "nosniff"
        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        assert packed.content == plain.content
        assert int(packed.headers["content-length"]) < len(plain.content)


@pytest.mark.parametrize(
    "path", ["/static/0000000000000000/main.js", "/static/{hash}/none.js", "/static/{hash}/../page_files.py"]
)
def test_there_are_no_other_files(client: TestClient, path: str) -> None:
    """H20: neither of an older page, nor outside of its folder."""
    assert client.get(path.replace("{hash}", PageFiles().hash)).status_code == 404


def test_the_page_loads_all_its_files_and_no_others(client: TestClient) -> None:
    """H20: each module is imported by another one."""
    loaded = {path.split("/", 3)[3] for path in scripts(client)}
    assert loaded == {str(path.relative_to(FOLDER).as_posix()) for path in SOURCES if path.suffix == ".js"}


def test_every_module_can_be_read_by_a_browser_as_it_is_sent(client: TestClient) -> None:
    """H20."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node isn't installed")
    command = [node, "--no-warnings", "--experimental-vm-modules", "-e", SYNTAX]
    done = subprocess.run(command, input=json.dumps(scripts(client)), text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_no_file_makes_markup_or_code_of_texts_or_names_another_host(path: Path) -> None:
    """H20: so no value can become an element, and no request leaves the server."""
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    forbidden = (
        r"\.(inner|outer)HTML\b|insertAdjacentHTML|setHTML|document\.write|createContextualFragment"
        r"|\beval\(|new Function|set(Timeout|Interval)\(\s*[\"'`]|https?://|wss?://|import\("
    )
    assert re.search(forbidden, text) is None
    assert not re.search(r"@import|url\(", text) or path.suffix != ".css"


def test_the_texts_of_scripts_are_sent_as_they_are_written(client: TestClient) -> None:
    """H20: what is left out around them means nothing."""
    texts = re.compile(r""" "(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`\n]*` """.strip())
    expression_with_quotes = re.compile(r"""/[^/\s]*["'`][^/\s]*/""")
    for path, sent in scripts(client).items():
        written = (FOLDER / path.split("/", 3)[3]).read_text()
        code = re.sub(r"(?m)^\s*(/\*.*|\*.*|//.*)$|(?<=\s)// [^\n]*$", "", written)
        place = 0
        lines = [line for line in code.splitlines() if not expression_with_quotes.search(line)]
        for text in [each for line in lines for each in texts.findall(line)]:
            found = sent.find(text, place)
            assert found >= 0, (path, text)
            place = found + len(text)


@pytest.mark.parametrize(
    "path", [each for each in SOURCES if each.suffix == ".js"], ids=lambda each: each.name
)
def test_no_line_of_a_script_could_continue_the_one_before(path: Path) -> None:
    """H20: ends of lines are left out, and must mean nothing: so statements end with semicolons."""
    text = re.sub(r"(?ms)^\s*/\*.*?\*/$|(?<=\s)// [^\n]*$", "", path.read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line, next_line in pairwise(lines):
        is_value = re.search(r"[\w$)\]}\"'`]$", line) is not None
        assert not (is_value and re.match(r"[(\[`/]|\+\+|--", next_line)), (line, next_line)
        assert not re.search(r"\b(return|throw|break|continue|yield|async)$", line), line
        assert not re.match(r"(for|while|if) \([^()]*(\([^()]*\)[^()]*)*\);$", line), line


def test_the_page_is_small() -> None:
    """H20: all that a browser loads, compressed."""
    assert PageFiles().compressed_size() <= MOST_BYTES


def test_the_files_are_in_the_package() -> None:
    """H20: nothing has to be built after an install."""
    settings: Any = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["src/limpet"]}
    if git := shutil.which("git"):  # what git ignores isn't packed
        command = [git, "check-ignore", *map(str, SOURCES)]
        assert subprocess.run(command, cwd=ROOT, text=True, capture_output=True).stdout == ""
    page = PageFiles()
    for path in SOURCES:
        name = path.relative_to(FOLDER).as_posix()
        assert path.suffix in (".css", ".html") or page.find(page.hash, name), name
    main = page.find(page.hash, "main.js")
    assert main is not None
    assert gzip.decompress(main.compressed) == main.content
