"""Files of plain tables: a SQLite database, or JSON lines. Both are added to, and remember how far they go.

All rows of a run that one call writes are in the file together or not at all: in SQLite by a transaction, in JSON
lines by the line of the run, which comes last. What follows the last such line is cut off before more is added.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from limpet.errors import UsageError
from limpet.stores.atomic_files import explain

APPLICATION_ID = 0x4C4D4631
"""Marks a database as one of these ("LMF1"), so that no other is written to."""

COLUMNS = {
    "runs": [
        "run_id",
        "graph",
        "status",
        "created",
        "updated",
        "tags",
        "parent",
        "step",
        "node",
        "reason",
        "error",
        "questions",
        "problem",
        "records",
        "queue",
    ],
    "steps": ["run_id", "step", "branch", "node", "at", "next", "status", "reason", "keys"],
    "states": ["run_id", "step", "branch", "key", "value", "removed"],
}
"""The tables. Those who read them rely on these names."""

AS_JSON = frozenset({"tags", "error", "questions", "keys", "value"})
"""Columns whose values are JSON, in SQLite as text."""

SCHEMA = """
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, graph TEXT, status TEXT, created TEXT, updated TEXT, tags TEXT, parent TEXT,
    step INTEGER, node TEXT, reason TEXT, error TEXT, questions TEXT, problem TEXT, records INTEGER,
    queue TEXT
);
CREATE TABLE steps (
    run_id TEXT, step INTEGER, branch TEXT, node TEXT, at TEXT, next TEXT, status TEXT, reason TEXT, keys TEXT,
    PRIMARY KEY (run_id, step)
);
CREATE TABLE states (run_id TEXT, step INTEGER, branch TEXT, key TEXT, value TEXT, removed INTEGER);
CREATE UNIQUE INDEX states_by_step ON states (run_id, step, coalesce(branch, ''), key);
CREATE INDEX states_by_key ON states (run_id, key, step);
CREATE VIEW newest_states AS
    SELECT run_id, key, value, max(step) AS step FROM states WHERE branch IS NULL
    GROUP BY run_id, key HAVING NOT removed;
"""

Row = dict[str, Any]


class FlatRun(NamedTuple):
    """The rows of one run that a file gets. `is_new` if it has none of this run, or those of an earlier one."""

    run: Row
    steps: list[Row]
    values: list[Row]
    is_new: bool


class FlatFile(Protocol):
    """A file of plain tables, open to be added to."""

    def has_run(self, row: Row) -> bool:
        """Whether the file has a run with these values in its row."""
        ...

    def records_of(self, run_id: str, created: str) -> int:
        """How many records of a run the file's rows are made of; 0 if it has none of the run."""
        ...

    def write(self, run: FlatRun) -> None:
        """Add the rows of a run."""
        ...


@contextmanager
def open_flat_file(path: str | os.PathLike[str]) -> Iterator[FlatFile]:
    """A file to add to: JSON lines if its name ends in `.jsonl`, else a SQLite database. It is created if needed.

    Raises `UsageError` for a file of another kind, and `StoreUnavailable` if it can't be read or written.
    """
    target = Path(path)
    try:
        # Created here, so that only this user can read it.
        with suppress(FileExistsError):
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        opened = JsonLines(target) if target.suffix == ".jsonl" else PlainDatabase(target)
        try:
            yield opened
            opened.commit()
        finally:
            opened.close()
    except OSError as error:
        raise explain(error, target) from error
    except sqlite3.Error as error:
        raise UsageError(f"{target} can't be written as a SQLite database: {error}") from error


class PlainDatabase:
    """A SQLite database of plain tables."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._prepare(path)
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self, path: Path) -> None:
        (owner,) = self._connection.execute("PRAGMA application_id").fetchone()
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if owner == APPLICATION_ID:
            self._add_missing_columns()
            return
        if owner or tables:
            raise UsageError(f"{path} is another database: name a file that doesn't exist yet")
        for statement in SCHEMA.split(";"):
            self._connection.execute(statement)
        self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")

    def _add_missing_columns(self) -> None:
        """Give a file that an earlier version wrote the columns that were added since. In its rows they are NULL."""
        for table, columns in COLUMNS.items():
            found = {row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")}
            for column in columns:
                if column not in found:
                    self._connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} TEXT")

    def has_run(self, row: Row) -> bool:
        condition = " AND ".join(f"{name} IS ?" for name in row)
        query = f"SELECT 1 FROM runs WHERE {condition}"
        return self._connection.execute(query, [_plain(row, name) for name in row]).fetchone() is not None

    def records_of(self, run_id: str, created: str) -> int:
        query = "SELECT records FROM runs WHERE run_id = ? AND created = ?"
        row = self._connection.execute(query, (run_id, created)).fetchone()
        return 0 if row is None else int(row[0])

    def write(self, run: FlatRun) -> None:
        if run.is_new:
            for table in COLUMNS:
                self._connection.execute(f"DELETE FROM {table} WHERE run_id = ?", (run.run["run_id"],))
        self._insert("steps", run.steps)
        self._insert("states", run.values)
        self._insert("runs", [run.run])

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()

    def _insert(self, table: str, rows: list[Row]) -> None:
        columns = COLUMNS[table]
        statement = (
            f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        )
        self._connection.executemany(statement, ([_plain(row, name) for name in columns] for row in rows))


class JsonLines:
    """A file of JSON lines, each with the name of its `table`. A later line replaces an earlier one of its row."""

    def __init__(self, path: Path) -> None:
        self._known: dict[str, Row] = {}
        self._file = path.open("r+b")
        try:
            self._file.seek(self._read_known(path))
            self._file.truncate()
        except BaseException:
            self._file.close()
            raise

    def _read_known(self, path: Path) -> int:
        """Learn which runs the file has; returns where the last whole one ends."""
        end = 0
        place = 0
        for line in self._file:
            place += len(line)
            row = _json_object(line)
            if row is None or row.get("table") not in COLUMNS:
                if line.endswith(b"\n"):
                    raise UsageError(f"{path} isn't a file of plain tables: name one that doesn't exist yet")
                break
            if row["table"] == "runs" and line.endswith(b"\n"):
                self._known[row["run_id"]] = row
                end = place
        return end

    def has_run(self, row: Row) -> bool:
        known = self._known.get(row["run_id"], {})
        return all(known.get(name) == value for name, value in row.items())

    def records_of(self, run_id: str, created: str) -> int:
        known = self._known.get(run_id, {})
        return int(known["records"]) if known.get("created") == created else 0

    def write(self, run: FlatRun) -> None:
        lines = [("steps", row) for row in run.steps]
        lines += [("states", row) for row in run.values]
        lines.append(("runs", run.run))
        for table, row in lines:
            _write_line(self._file, {"table": table, **{name: row[name] for name in COLUMNS[table]}})

    def commit(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _plain(row: Row, name: str) -> Any:
    value = row[name]
    if name in AS_JSON and value is not None:
        return _without_surrogates(json.dumps(value, ensure_ascii=False))
    if name == "value" and not row["removed"]:
        return "null"
    if isinstance(value, str):
        return _without_surrogates(value)
    return value


def _without_surrogates(text: str) -> str:
    """A text as SQLite can store it: half a character, as `os.fsdecode` makes of odd bytes, becomes `\\udcff`."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _json_object(line: bytes) -> Row | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _write_line(file: IO[bytes], row: Row) -> None:
    file.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
