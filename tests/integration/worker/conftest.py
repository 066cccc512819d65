"""The same coordinator as for the tests of checkpoints through one: it notices soon that a worker is gone."""

from tests.integration.council.conftest import running

__all__ = ["running"]
