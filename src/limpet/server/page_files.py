"""The files of the page: read once, and served under a path with their hash, so that browsers keep them for ever."""

from __future__ import annotations

import gzip
import hashlib
import re
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from limpet.drawing.palette import page_style

FOLDER: Final = "page"
SHELL: Final = "index.html"
STYLES: Final = "page.css"
"""All style sheets, in the order of their names, after the colours."""

FIRST: Final = ("core/", "parts/")
"""How the paths of modules begin that others import: browsers load them at once, not one after another."""

MEDIA_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""The media types of files, by how their names end."""

SHEET_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)

SHEET_SPACE: Final = re.compile(r" ?([{}>;,]) ?|(?<=:) ")
"""A sign of a style sheet with spaces around it that mean nothing. No text in the sheets has one."""

TOKEN: Final = re.compile(
    r"""
      (?P<space> \s+ | //[^\n]* | /\*.*?\*/ )
    | (?P<text> "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' )
    | (?P<word> [\w$]+ )
    | (?P<sign> . )
    """,
    re.DOTALL | re.VERBOSE,
)
"""A part of a script. Templates, and slashes that begin regular expressions, are seen by what is around them."""

EXPRESSION: Final = re.compile(r"/(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/\w*")
"""A regular expression in a script."""

BEFORE_EXPRESSION: Final = re.compile(r"(^|[^\w$)\]}]|\breturn)$")
"""How what is before a regular expression ends: after a value, a slash divides."""


class PageFile(NamedTuple):
    """A file as it is sent: whole, and compressed."""

    content: bytes
    compressed: bytes
    media_type: str


class PageFiles:
    """The files of the page by their paths, and the document that loads them."""

    def __init__(self) -> None:
        folder = files("limpet.server").joinpath(FOLDER)
        contents = _contents(folder)
        self._shell = contents.pop(SHELL).decode()
        sheets = [contents.pop(path).decode() for path in sorted(contents) if path.endswith(".css")]
        contents[STYLES] = "\n".join([page_style(), *sheets]).encode()
        sent = {path: _as_sent(path, content) for path, content in sorted(contents.items())}
        self.hash = _hash_of({**sent, SHELL: self._shell.encode()})
        self._files = {path: _page_file(path, content) for path, content in sent.items()}

    def find(self, hash: str, path: str) -> PageFile | None:
        """The file with this path, if the hash is that of the files."""
        if hash != self.hash:
            return None
        return self._files.get(path)

    def shell(self, root: str) -> bytes:
        """The document that every page is, for a server that is mounted under `root`: it loads the modules."""
        place = f"{root}/static/{self.hash}"
        modules = [path for path in self._files if path.endswith(".js") and path.startswith(FIRST)]
        links = [f'<link rel="modulepreload" href="{{{{place}}}}/{path}">' for path in modules]
        document = self._shell.replace("{{links}}", "\n".join(links))
        return document.replace("{{place}}", escape(place)).replace("{{root}}", escape(root)).encode()

    def compressed_size(self) -> int:
        """Bytes that a browser loads for the page the first time."""
        return sum(len(file.compressed) for file in self._files.values()) + len(gzip.compress(self.shell("")))


def _contents(folder: Traversable, prefix: str = "") -> dict[str, bytes]:
    """The contents of all files in a folder, by their paths in it."""
    found: dict[str, bytes] = {}
    for each in folder.iterdir():
        if each.is_dir():
            found |= _contents(each, f"{prefix}{each.name}/")
        elif each.name.rpartition(".")[2] in (*MEDIA_TYPES, "html"):
            found[prefix + each.name] = each.read_bytes()
    return found


def _hash_of(contents: dict[str, bytes]) -> str:
    hash = hashlib.sha256()
    for path in sorted(contents):
        hash.update(f"{path}\0{len(contents[path])}\0".encode())
        hash.update(contents[path])
    return hash.hexdigest()[:16]


def _page_file(path: str, content: bytes) -> PageFile:
    return PageFile(content, gzip.compress(content, mtime=0), MEDIA_TYPES[_kind(path)])


def _as_sent(path: str, content: bytes) -> bytes:
    """A script or a style sheet without what only people read: comments, and white space that means nothing."""
    match _kind(path):
        case "js":
            return _script(content.decode()).encode()
        case "css":
            return _sheet(content.decode()).encode()
        case _:
            return content


def _sheet(text: str) -> str:
    return SHEET_SPACE.sub(r"\1", " ".join(SHEET_COMMENT.sub("", text).split())).replace(";}", "}")


def _script(text: str) -> str:
    """A script whose statements end with semicolons, so that the ends of its lines mean nothing; none is empty."""
    sent = ""
    after_space = False
    place = 0
    while place < len(text):
        token, is_space = _token(text, place, sent)
        place += len(token)
        if is_space:
            after_space = True
            continue
        if token in (")", "]", "}"):
            sent = sent.removesuffix(",")
        if token == "}":
            sent = sent.removesuffix(";")
        if after_space and sent and _would_join(sent[-1], token[0]):
            sent += " "
        sent += token
        after_space = False
    return sent


def _token(text: str, place: int, before: str) -> tuple[str, bool]:
    """The part of a script at a place, and whether it means nothing. `before` is what has been sent up to there."""
    if text[place] == "`":
        return text[place : _end_of_template(text, place)], False
    found = TOKEN.match(text, place)
    assert found is not None
    if found["sign"] == "/" and BEFORE_EXPRESSION.search(before[-len("=return") :]):
        found = EXPRESSION.match(text, place) or found
    return found[0], found.lastgroup == "space"


def _end_of_template(text: str, start: int) -> int:
    """Where a template ends. What is in its braces stays as it is, also other templates."""
    place = start + 1
    depth = 0
    while text[place] != "`" or depth:
        if text[place] == "`":
            place = _end_of_template(text, place)
            continue
        if text[place] == "\\":
            place += 1
        elif text.startswith("${", place) or (depth and text[place] == "{"):
            depth += 1
            place += text[place] == "$"
        elif text[place] == "}" and depth:
            depth -= 1
        place += 1
    return place + 1


def _would_join(before: str, after: str) -> bool:
    """Whether two characters would be read as one part of a script: two of words, or of `++` and `--`."""
    if before == after and before in "+-":
        return True
    return all(character.isalnum() or character in "_$" for character in (before, after))


def _kind(path: str) -> str:
    return path.rpartition(".")[2]
