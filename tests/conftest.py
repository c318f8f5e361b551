"""Fixtures for all tests: real servers, started when a test first asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.postgres import Server, serve


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server of this test process."""
    yield from serve()


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    """The URL of an empty database of it."""
    name = postgres.new_database()
    yield postgres.of(name)
    postgres.drop(name)
