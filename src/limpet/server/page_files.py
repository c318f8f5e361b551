"""The files of the page: read once, and served under a path with their hash, so that browsers keep them for ever."""

from __future__ import annotations

import gzip
import hashlib
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from limpet.drawing.palette import page_style

FOLDER: Final = "page"
SHELL: Final = "index.html"
PALETTE: Final = "styles/palette.css"

MEDIA_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""The media types of files, by how their names end."""


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
        contents[PALETTE] = page_style().encode()
        self.hash = _hash_of({**contents, SHELL: self._shell.encode()})
        self._files = {path: _page_file(path, content) for path, content in sorted(contents.items())}

    def find(self, hash: str, path: str) -> PageFile | None:
        """The file with this path, if the hash is that of the files."""
        if hash != self.hash:
            return None
        return self._files.get(path)

    def shell(self, root: str) -> bytes:
        """The document that every page is, for a server that is mounted under `root`: it loads the modules."""
        place = f"{root}/static/{self.hash}"
        modules = [
            f'<link rel="modulepreload" href="{escape(place)}/{path}">'
            for path in self._files
            if path.endswith(".js")
        ]
        styles = [
            f'<link rel="stylesheet" href="{escape(place)}/{path}">'
            for path in self._files
            if path.endswith(".css")
        ]
        document = self._shell.replace("{{links}}", "\n".join([*styles, *modules]))
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
    media_type = MEDIA_TYPES[path.rpartition(".")[2]]
    return PageFile(content, gzip.compress(content, mtime=0), media_type)
