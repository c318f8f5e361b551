"""A crash matrix for all tests of a module, which share its uninterrupted runs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from limpet.testing import CrashMatrix


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashMatrix]:
    if not hasattr(os, "fork"):
        pytest.skip("a new Python for each of thousands of processes takes too long")
    with CrashMatrix(tmp_path_factory.mktemp("matrix")) as made:
        yield made
