"""The script that makes the screenshots of the documentation."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import limpet
from support.browser import browser_program
from support.screenshots import SHARPNESS

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "docs" / "images"


def size(path: Path) -> tuple[int, int]:
    """The width and the height of a PNG file."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:])
    return width, height


@pytest.mark.timeout(300)  # it renders all of them in software
def test_the_script_still_makes_all_screenshots(tmp_path: Path) -> None:
    """H20: each page has what its picture is to show, as the script waits for it. Here it makes them less sharp."""
    browser_program()
    folders = [str(Path(limpet.__file__).parents[1]), str(ROOT / "tests")]
    subprocess.run(
        [sys.executable, "-m", "support.screenshots", "--sharpness", "1", "--into", str(tmp_path)],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )
    kept = {path.name: size(path) for path in IMAGES.glob("*.png")}
    made = {path.name: size(path) for path in tmp_path.iterdir()}
    assert {name: (SHARPNESS * width, SHARPNESS * height) for name, (width, height) in made.items()} == kept
