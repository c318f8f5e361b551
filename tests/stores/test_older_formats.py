"""What an earlier version wrote can be read whole by this one, and resumed: promises D10 and P10.

`tests/data` has files of each version of a format; see `support/older_runs.py`.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from limpet import MemoryStore, StoreUnavailable
from limpet.journal.encoding.codec import decode
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.records import BUNDLE, KINDS, NESTED
from limpet.journal.run_filter import RunFilter
from limpet.stores.files.store import FileStore
from limpet.stores.migrations import Migration, migrations_of, sql_of
from limpet.stores.postgres import schema as postgres_schema
from limpet.stores.sqlite import schema as sqlite_schema
from limpet.stores.sqlite.store import SQLiteStore
from support.older_runs import DATA, ENDED, begin_all, check_all, exact, example
from support.postgres import Server

NEXT = sqlite_schema.VERSION + 1


def kept(kind: str) -> list[Path]:
    return sorted(DATA.glob(f"{kind}_*"))


def restored(dump: Path, path: Path) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(dump.read_text())
    return path


@pytest.mark.parametrize("dump", kept("sqlite"), ids=lambda dump: dump.stem)
def test_a_sqlite_file_of_each_schema_is_read_and_resumed(dump: Path, tmp_path: Path) -> None:
    """D10, P10: brought to the present schema when it is opened, without losing a run."""
    path = restored(dump, tmp_path / "runs.db")
    with closing(SQLiteStore(path)) as store:
        check_all(store)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (sqlite_schema.VERSION,)


@pytest.mark.parametrize("dump", kept("postgres"), ids=lambda dump: dump.stem)
def test_a_postgresql_database_of_each_schema_is_read_and_resumed(
    dump: Path, postgres: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10, P10."""
    from limpet.stores.postgres.store import PostgresStore

    known = migrations_of("postgres")
    version = int(dump.stem.rpartition("_")[2])
    with monkeypatch.context() as patch:
        patch.setattr(postgres_schema, "migrations", lambda: known[:version])
        PostgresStore(database).close()
    postgres.sql(*dump.read_text().splitlines(), database=database.partition("?")[0].rpartition("/")[2])
    with closing(PostgresStore(database)) as store:
        check_all(store)


@pytest.mark.parametrize("folder", kept("files"), ids=lambda folder: folder.stem)
def test_a_directory_of_each_format_is_read_and_resumed(folder: Path, tmp_path: Path) -> None:
    """P10."""
    shutil.copytree(folder, tmp_path / "runs")
    with closing(FileStore(tmp_path / "runs")) as store:
        check_all(store)


@pytest.mark.parametrize("file", kept("exported"), ids=lambda file: file.stem)
def test_an_exported_run_of_each_format_is_imported_and_resumed(file: Path) -> None:
    """P10."""
    graph = example(MemoryStore())
    assert graph.import_run(file) == "waits"
    assert exact(graph.resume("waits", "yes")) == exact(ENDED)


def test_each_earlier_version_has_an_example() -> None:
    """D10, P10: a new migration comes with a file that the version before it wrote."""
    for kind in ("sqlite", "postgres"):
        numbers = [migration.version for migration in migrations_of(kind)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert {f"{kind}_{number}" for number in numbers[:-1] or numbers} <= {
            path.stem for path in kept(kind)
        }


def test_the_example_has_every_kind_of_record(tmp_path: Path) -> None:
    """P10: so that reading it shows that all of them can be read."""
    kinds = set()
    with closing(SQLiteStore(restored(DATA / "sqlite_1.sql", tmp_path / "runs.db"))) as store:
        for run_id in ("waits", "complete"):
            for number, data in enumerate(store.read(run_id, first=1).records, 1):
                record = decode(Envelope(run_id).open(number, data))
                kinds |= {record[0]}
                for each in record[1:] if record[0] == BUNDLE else [record]:
                    kinds |= {each[0], *([each[5][0]] if each[0] == NESTED else [])}
    assert kinds == {*KINDS, BUNDLE}


def test_a_sqlite_migration_is_applied_to_an_existing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10: the next version's, once, with comments and triggers; and every run is kept."""
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        begin_all(store)
        before = store.list(RunFilter())
    known = migrations_of("sqlite")
    sql = """-- A colour; and what would be two statements elsewhere; is one here.
    ALTER TABLE runs ADD COLUMN colour TEXT NOT NULL DEFAULT 'bl;ue';
    CREATE TABLE seen (n); CREATE TRIGGER s AFTER INSERT ON seen BEGIN SELECT 1; SELECT 2; END;
    INSERT INTO seen VALUES (1) -- unfinished"""
    monkeypatch.setattr(sqlite_schema, "VERSION", NEXT)
    monkeypatch.setattr(sqlite_schema, "migrations", lambda: (*known, Migration(NEXT, "next.sql", sql)))
    for _ in range(2):
        with closing(SQLiteStore(path)) as store:
            assert store.list(RunFilter()) == before
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT DISTINCT colour FROM runs").fetchall() == [("bl;ue",)]
        assert connection.execute("SELECT n FROM seen").fetchall() == [(1,)]
    with closing(SQLiteStore(path)) as store:
        check_all(store)


def test_a_sqlite_migration_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10: all or nothing, and the file is as good as before."""
    path = restored(DATA / "sqlite_1.sql", tmp_path / "runs.db")
    known = migrations_of("sqlite")
    bad = Migration(NEXT, "bad.sql", "CREATE TABLE half (x);\nINSERT INTO nowhere VALUES (1);")
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_schema, "VERSION", NEXT)
        patch.setattr(sqlite_schema, "migrations", lambda: (*known, bad))
        with pytest.raises(StoreUnavailable, match="no such table: nowhere"):
            SQLiteStore(path)
    with closing(SQLiteStore(path)) as store:
        check_all(store)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'half'").fetchall() == []


def test_the_version_of_a_sqlite_file_is_that_of_the_newest_migration() -> None:
    """D10: the code states the number, too."""
    assert migrations_of("sqlite")[-1].version == sqlite_schema.VERSION


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_the_sql_of_all_migrations_can_be_reviewed(kind: str) -> None:
    """D10: by an administrator, each file under its name."""
    text = sql_of(kind)
    assert re.findall(r"^-- (\d{4}_\w+\.sql)$", text, re.M) == [each.name for each in migrations_of(kind)]
    assert "CREATE TABLE runs" in text


def test_sql_and_lua_are_in_the_wheel(tmp_path: Path) -> None:
    """D10: an installed Limpet has its migrations, statements and scripts."""
    builder = pytest.importorskip("hatchling.builders.wheel")
    root = Path(__file__).parent.parent.parent
    (built,) = builder.WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"])
    names = zipfile.ZipFile(built).namelist()
    for pattern in ("*.sql", "*.lua"):
        files = sorted((root / "src" / "limpet" / "stores").rglob(pattern))
        assert files
        for file in files:
            assert file.relative_to(root / "src").as_posix() in names
