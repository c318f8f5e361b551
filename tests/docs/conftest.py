"""The documentation as a site."""

from __future__ import annotations

import os

import pytest

from support.site import Site, built_site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The site, built once: by one of the processes that the tests are spread over."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    return built_site(folder / "site")
