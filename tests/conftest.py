"""What all tests share: servers that are started when one is asked for, and an environment that names no store."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from limpet.testing import pytest_plugin as plugin
from support.postgres import Server, serve

pytest_plugins = ["pytester"]

NAMES = ("LIMPET_STORE", "LIMPET_ENCRYPTION_KEY", "LIMPET_ENCRYPTION_OLD_KEYS")
for name in (*NAMES, "WORKFLOW_CHECKPOINT_BACKEND", "WORKFLOW_CHECKPOINT_DSN"):
    os.environ.pop(name, None)  # for the processes that tests start, too


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Have the plugin that ships with the library, also where the library isn't installed."""
    if not pluginmanager.has_plugin("limpet"):
        pluginmanager.register(plugin, "limpet")


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
