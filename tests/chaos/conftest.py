"""What a first run left, for the tests that kill the second."""

import pytest

from tests.chaos.recovering import Ground


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("jobs"))
