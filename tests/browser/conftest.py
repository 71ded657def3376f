"""One laboratory, server and browser for all tests of a module."""

from collections.abc import Iterator

import pytest

from tests.browser.laboratory import Laboratory, require_browser
from tests.browser.ui import Page


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory) -> Laboratory:
    require_browser()
    return Laboratory(tmp_path_factory.mktemp("laboratory"))


@pytest.fixture(scope="module")
def page(laboratory) -> Iterator[Page]:
    with laboratory.page(laboratory.folder) as page:
        yield page
