"""The documentation as a site."""

from __future__ import annotations

import pytest

from support.site import Site, built_site


@pytest.fixture(scope="session")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The site, built once: by one of the processes that the tests are spread over."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # one of several processes
        folder = folder.parent
    return built_site(folder / "site")
