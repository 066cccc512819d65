import pytest

from strata.storage import MemoryStorage, StorageBackend
from strata.testing import StorageTests


class TestMemory(StorageTests):
    outlives_the_process = False
    writes_at_once = True

    @pytest.fixture
    def storage(self) -> StorageBackend:
        return MemoryStorage()


class TestMemoryUnderAPrefix(StorageTests):
    outlives_the_process = False
    writes_at_once = True

    @pytest.fixture
    def storage(self) -> StorageBackend:
        return MemoryStorage(prefix="some/prefix")
