"""Screenshots as small PNG files: with a palette of their 256 most telling colours."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from playwright.sync_api import Browser

COLOURS = 256

READ_PIXELS = """
async data => {
  const content = await fetch(`data:image/png;base64,${data}`);
  const picture = await createImageBitmap(await content.blob(), { colorSpaceConversion: "none" });
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(picture, 0, 0);
  const pixels = context.getImageData(0, 0, picture.width, picture.height).data;
  const reader = new FileReader();
  const isRead = new Promise(resolve => (reader.onload = resolve));
  reader.readAsDataURL(new Blob([pixels]));
  await isRead;
  return { width: picture.width, height: picture.height, pixels: reader.result.split(",")[1] };
}
"""
"""The pixels of a PNG file, as red, green, blue and alpha. A browser knows how to read it."""


def with_palette(started: Browser, screenshot: bytes) -> bytes:
    """The same picture as a PNG file with a palette."""
    page = started.new_page()
    read = page.evaluate(READ_PIXELS, base64.b64encode(screenshot).decode())
    page.close()
    pixels = np.frombuffer(base64.b64decode(read["pixels"]), np.uint32).reshape(read["height"], read["width"])
    colours, places, counts = np.unique(pixels, return_inverse=True, return_counts=True)
    channels = colours.view(np.uint8).reshape(-1, 4)[:, :3].astype(np.int64)
    palette, nearest = _palette(channels, counts)
    return _encoded(nearest[places.reshape(pixels.shape)].astype(np.uint8), palette.astype(np.uint8))


def _palette(colours: Any, counts: Any) -> tuple[Any, Any]:
    """The colours to keep, and for each colour the number of the one that is nearest.

    Next is always the colour that counts most: by how often it is seen, and how far it is from those that are kept.
    """
    chosen = [int(counts.argmax())]
    distances = np.full(len(colours), np.inf)
    nearest = np.zeros(len(colours), np.int64)
    while True:
        to_last = ((colours - colours[chosen[-1]]) ** 2).sum(axis=1)
        is_nearer = to_last < distances
        distances[is_nearer] = to_last[is_nearer]
        nearest[is_nearer] = len(chosen) - 1
        worst = int((np.sqrt(counts) * distances).argmax())
        if len(chosen) == COLOURS or distances[worst] == 0:
            return colours[chosen], nearest
        chosen.append(worst)


def _encoded(indices: Any, palette: Any) -> bytes:
    height, width = indices.shape
    rows = np.pad(indices, ((0, 0), (1, 0))).tobytes()  # before each row: it isn't filtered
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = [
        (b"IHDR", header),
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
