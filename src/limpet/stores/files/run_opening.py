"""Opening a run in files, and creating one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from limpet.journal.store import RunHead
from limpet.stores.atomic_files import flush_directory
from limpet.stores.files.frames import JournalPlace
from limpet.stores.files.run_files import RunFiles
from limpet.stores.files.run_names import new_token, parse_head_file, read_head_file


def open_run(
    directory: Path, flush: bool, run_id: str, cut: bool = True, content: bytes | None = None
) -> RunFiles:
    """A run, as it is now. Raises `RunNotFound`, and `DamagedRecord` for a damaged head file.

    `content` is that of the head file, if it was read just now. Without `cut`, the files aren't changed.
    """
    content = content or read_head_file(directory, run_id)
    head, place = parse_head_file(run_id, content)
    run = RunFiles(directory, flush, head, place)
    run.head_bytes = content
    try:
        run.read_further(cut)
    except BaseException:
        run.close()
        raise
    return run


def create_run(directory: Path, flush: bool, head: RunHead, records: list[bytes]) -> RunFiles:
    """A new run with its first records. It exists once its head file does, so that comes last."""
    run = RunFiles(directory, flush, head._replace(sequence=0), JournalPlace(new_token()))
    try:
        if records:
            frame = run.write_frame(records, None)
            run.flush_journal()
            run.accept_frame(frame, len(records), None)
        run.replace_head(head._replace(sequence=len(records)))
    except BaseException:
        run.close()
        # The head may be there already, if only its name couldn't be flushed. It goes first; the journal stays if
        # the head may come back with a power loss, and goes with the next `expire`.
        with suppress(OSError):
            run.head_path.unlink(missing_ok=True)
            if flush:
                flush_directory(directory)
            run.journal_path.unlink()
        raise
    return run
