"""The demonstration as a picture of its terminal: `PYTHONPATH=src:tests python -m support.terminal_svg` writes it.

`limpet demo --fast` really runs, in a pseudo terminal, so the picture has the colours and the line breaks that a user
sees. Only what differs from run to run is made the same: process ids and the folder of the store.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "demo.svg"
COMMAND = "limpet demo --fast"

ROWS = 50
COLUMNS = 114
CELL_WIDTH = 7.83
LINE_HEIGHT = 15
FONT_SIZE = 13
PADDING = 18
TITLE_HEIGHT = 36

STYLES = {
    "1": "bold",
    "2": "dim",
    "31": "red",
    "32": "green",
    "33": "yellow",
    "35": "magenta",
    "36": "cyan",
}
"""The names that the picture has for the escape sequences that the command line uses."""

STYLE_SHEET = (
    f"text{{font:{FONT_SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
    "fill:#d5dbe5;white-space:pre}"
    ".window{fill:#141a24;stroke:#2c3646}.bar{fill:#1e2736}.title{fill:#8f9bb0;text-anchor:middle}"
    ".bold{font-weight:700;fill:#ffffff}.dim{fill:#8f9bb0}.red{fill:#ff8080}.green{fill:#6fdc9a}"
    ".yellow{fill:#ffd166}.magenta{fill:#d9a6ff}.cyan{fill:#79d4f5}.prompt{fill:#6fdc9a}"
)


class Span(NamedTuple):
    """Text of one style that begins at a column of its line."""

    column: int
    text: str
    style: str


Line = list[Span]


def main() -> None:
    PICTURE.write_text(render(demo_lines()), encoding="utf-8", newline="\n")
    print(PICTURE.relative_to(ROOT))


def demo_lines() -> list[Line]:
    """The lines of the terminal after the demonstration, with the command that was typed as the first."""
    with tempfile.TemporaryDirectory() as folder:
        printed = run_in_terminal(Path(folder).resolve())
        text = same_every_time(printed, Path(folder).resolve())
    typed = [Span(0, "$", "prompt"), Span(2, COMMAND, "bold")]
    return [typed, *laid_out(text)]


def run_in_terminal(folder: Path) -> str:
    """Everything that the demonstration writes to a terminal of this size."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    command = [str(installed(folder)), *COMMAND.split()[1:], "--dir", str(folder / "demo")]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, env=environment(folder)
    ) as process:
        os.close(terminal)
        printed = b"".join(chunks(controller))
    os.close(controller)
    if process.returncode != 0:
        raise RuntimeError(f"{COMMAND} ended with {process.returncode}:\n{printed.decode()}")
    return printed.decode().replace("\r\n", "\n")


def installed(folder: Path) -> Path:
    """A `limpet` that runs the code of this repository, whether or not it is installed."""
    script = folder / "bin" / "limpet"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nfrom limpet.cli.main import main\n\nraise SystemExit(main())\n")
    script.chmod(0o755)
    return script


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "LIMPET" not in name}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        kept.pop(name, None)
    search_path = os.pathsep.join([str(folder / "bin"), kept.get("PATH", "")])
    return {**kept, "PATH": search_path, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm-256color"}


def chunks(controller: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(controller, 65536)
        except OSError:  # Linux reports the end of a pseudo terminal as an error
            return
        if not chunk:
            return
        yield chunk


def same_every_time(printed: str, folder: Path) -> str:
    """The text with one process id for each process, in the order of their appearance, and one folder."""
    ids = dict.fromkeys(re.findall(r"process (\d+)", printed))
    for number, process_id in enumerate(ids, 1):
        printed = printed.replace(f"process {process_id} ", f"process {number}0{number} ")
    return printed.replace(str(folder), "/tmp").rstrip("\n")


def laid_out(text: str) -> list[Line]:
    """Lines as a terminal shows them: escape sequences become styles, and long lines are broken at its edge."""
    lines: list[Line] = []
    style = ""
    for written in text.split("\n"):
        line: Line = []
        column = 0
        for part in re.split(r"(\x1b\[[\d;]*[mK])", written):
            if part.startswith("\x1b"):
                style = STYLES.get(part[2:-1], "")
                continue
            while part:
                room = COLUMNS - column
                line += words(part[:room], column, style)
                column += len(part[:room])
                part = part[room:]
                if part:
                    lines.append(line)
                    line = []
                    column = 0
        lines.append(line)
    return lines


def words(text: str, column: int, style: str) -> Line:
    """The parts of a text without two spaces in a row; each is placed by its column, so drawings stay aligned."""
    return [
        Span(column + found.start(), found.group(), style) for found in re.finditer(r"\S+(?: \S+)*", text)
    ]


def render(lines: list[Line]) -> str:
    """A window with these lines as an SVG that needs nothing else: no script, no font, no address."""
    width = round(2 * PADDING + COLUMNS * CELL_WIDTH)
    height = TITLE_HEIGHT + 2 * PADDING + len(lines) * LINE_HEIGHT
    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">',
        f"<title>{COMMAND}: a run is killed with kill -9, and another process resumes it</title>",
        f"<style>{STYLE_SHEET}</style>",
        f'<rect class="window" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>',
        f'<path class="bar" d="M1 {TITLE_HEIGHT}V11a10 10 0 0 1 10-10'
        f'H{width - 11}a10 10 0 0 1 10 10V{TITLE_HEIGHT}z"/>',
        '<circle cx="22" cy="18" r="6" fill="#ff5f57"/>',
        '<circle cx="42" cy="18" r="6" fill="#febc2e"/>',
        '<circle cx="62" cy="18" r="6" fill="#28c840"/>',
        f'<text class="title" x="{width / 2:g}" y="23">{COMMAND}</text>',
    ]
    for number, line in enumerate(lines, 1):
        if line:
            spans = "".join(map(placed, line))
            shapes.append(f'<text y="{TITLE_HEIGHT + PADDING + number * LINE_HEIGHT - 4}">{spans}</text>')
    return "\n".join([*shapes, "</svg>"]) + "\n"


def placed(span: Span) -> str:
    style = f' class="{span.style}"' if span.style else ""
    return (
        f'<tspan x="{PADDING + span.column * CELL_WIDTH:.1f}"{style}>{escape(span.text, quote=False)}</tspan>'
    )


def plain(line: Line) -> str:
    """A line of the terminal as text, without its styles."""
    text = ""
    for span in line:
        text = text.ljust(span.column) + span.text
    return text


def lines_shown(picture: str) -> list[str]:
    """What can be read in the picture, line by line; empty lines are left out."""
    namespace = "{http://www.w3.org/2000/svg}"
    lines = []
    for text in ElementTree.fromstring(picture).iter(f"{namespace}text"):
        spans = [
            Span(round((float(tspan.attrib["x"]) - PADDING) / CELL_WIDTH), tspan.text or "", "")
            for tspan in text.iter(f"{namespace}tspan")
        ]
        if spans:
            lines.append(plain(spans))
    return lines


if __name__ == "__main__":
    main()
