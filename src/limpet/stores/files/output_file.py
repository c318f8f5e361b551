"""The output of a run in files: an output file beside its journal, with a frame for what was added in one call.

Nothing of it is flushed, since it needs to survive the process and not the machine. The frames that are whole count,
and so the file says by itself which is the newest item. A head says that there is such a file, and may be behind it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from limpet.journal.store import Output
from limpet.stores.atomic_files import replace_end, replace_file
from limpet.stores.files.frames import (
    Frame,
    UnfinishedFrame,
    checksum_seed,
    encode_frame,
    first_record_in,
    records_in,
    scan_frames,
)
from limpet.stores.files.run_names import OUTPUT_SUFFIX

if TYPE_CHECKING:
    from limpet.stores.files.run_files import RunFiles


class KnownOutput(NamedTuple):
    """What is known of an output file: how many items it has, the number of the newest, and where that ends."""

    items: int
    newest: int
    end: int


def add_output(run: RunFiles, bodies: Sequence[bytes], keep: int) -> int:
    """Add items, and return the number of the newest. Raises `TooLarge`, `OSError`."""
    before = run.head.output
    if not bodies:
        return before
    newest = before + len(bodies)
    frame = encode_frame(_seed(run), before + 1, list(bodies), None)
    known = _known_output(run)
    run.is_current = False  # if it fails, the next call reads what the file has
    if known.newest != before or known.items + len(bodies) > 2 * keep:
        run.output = _rewrite(run, bodies, keep)
    else:
        replace_end(_path(run), frame, known.end, create=True)
        run.output = KnownOutput(known.items + len(bodies), newest, known.end + len(frame))
    head = run.head._replace(output=newest)
    if before:
        run.head = head
        run.is_current = True
    else:
        run.replace_head(head)
    return newest


def read_output(run: RunFiles, after: int, limit: int | None) -> list[Output]:
    """The items that are numbered above `after`, as far as they can be read."""
    if run.head.output <= after:
        return []
    found: list[Output] = []
    data = _content(run)
    # The last frame may be one that was being written when the process, or the machine, stopped.
    with suppress(ValueError, UnfinishedFrame):
        for frame in _frames(run, data):
            if frame.first + frame.record_count > after + 1:
                items = enumerate(records_in(frame.kind, frame.body(data, 0)), frame.first)
                found += [Output(number, body) for number, body in items if number > after]
            if limit is not None and len(found) >= limit:
                break
    return found[:limit]


def newest_output(run: RunFiles) -> int:
    """The number of the newest item, where the head may be behind."""
    if run.head.output == 0:
        return 0
    try:
        size = os.stat(_path(run)).st_size
    except FileNotFoundError:
        return run.head.output
    if run.output is None or run.output.end != size:
        run.output = _read(run)
    return max(run.head.output, run.output.newest)


def _known_output(run: RunFiles) -> KnownOutput:
    if run.head.output == 0:  # what the file may have is of a run that was deleted
        return KnownOutput(0, 0, 0)
    if run.output is None:
        run.output = _read(run)
    return run.output


def _read(run: RunFiles) -> KnownOutput:
    data = _content(run)
    known = KnownOutput(0, 0, 0)
    with suppress(ValueError, UnfinishedFrame):
        for frame in _frames(run, data):
            newest = frame.first + frame.record_count - 1
            known = KnownOutput(known.items + frame.record_count, newest, frame.end)
    return known


def _rewrite(run: RunFiles, bodies: Sequence[bytes], keep: int) -> KnownOutput:
    """Write the newest items into another file, which takes the place of the first."""
    newest = run.head.output + len(bodies)
    added = [Output(number, body) for number, body in enumerate(bodies, run.head.output + 1)]
    first = newest - keep + 1
    recent = [item for item in added if item.number >= first]
    kept = [*read_output(run, first - 1, None), *recent]
    if kept and len(kept) != newest - kept[0].number + 1:  # some were lost with the power
        kept = recent
    content = b""
    if kept:
        content = encode_frame(_seed(run), kept[0].number, [item.body for item in kept], None)
    replace_file(_path(run), content, flush=False)
    return KnownOutput(len(kept), newest, len(content))


def _frames(run: RunFiles, data: bytes) -> Iterator[Frame]:
    return scan_frames(data, 0, first_record_in(data), _seed(run))


def _content(run: RunFiles) -> bytes:
    try:
        return _path(run).read_bytes()
    except FileNotFoundError:
        return b""


def _seed(run: RunFiles) -> int:
    return checksum_seed(run.head.run_id, OUTPUT_SUFFIX)


def _path(run: RunFiles) -> Path:
    return run.directory / f"{run.name}{OUTPUT_SUFFIX}"
