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

COMMENT: Final = re.compile(
    r"^[ \t]*/\*(?:(?!\*/).)*\*/[ \t]*$|(?:^|(?<=\s))// [^\n]*$", re.DOTALL | re.MULTILINE
)
"""A comment in lines of its own, or at the end of a line. No text in the page has such a `// `."""

TEXT: Final = r'"(?:[^"\\]|\\.)*"|`[^`]*`'
"""A text of a script."""

SPACE: Final = {
    "css": re.compile(r"() ?([{}>;,]) ?|(?<=:) "),
    "js": re.compile(rf"({TEXT})| ?([=!<>?:&|{{}}(),;]+) ?"),
}
"""What is kept, and signs with spaces around them that mean nothing."""

LINE_END: Final = re.compile(r",?\n(?=[)\]}])|(?<=[{(\[;,])\n|\n(?=[.?:&|])")
"""The end of a line where it means nothing: beside a bracket, with a comma before one that closes, or a sign."""


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
    """A script or a style sheet without what only people read: comments, indentation, most spaces and line ends."""
    kind = _kind(path)
    if kind not in SPACE:
        return content
    lines = (line.strip() for line in COMMENT.sub("", content.decode()).split("\n"))
    return LINE_END.sub("", "\n".join(_without_spaces(kind, line) for line in lines if line)).encode()


def _without_spaces(kind: str, line: str) -> str:
    """A line without spaces around signs; as it is, if it may have a regular expression or a text inside a text."""
    if kind == "js" and ("/" in re.sub(TEXT, "", line) or line.count("`") > 2):
        return line
    return SPACE[kind].sub(r"\1\2", line)


def _kind(path: str) -> str:
    return path.rpartition(".")[2]
