"""Tests of one group run in one process: pytest-xdist tells the group by the end of a test's id."""

import pytest


@pytest.mark.xdist_group("a group")
def test_the_group_of_a_test_is_in_its_id(request: pytest.FixtureRequest) -> None:
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@a group")
