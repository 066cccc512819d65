from pathlib import Path

import pytest

from strata.storage import BlockingStorage, LocalStorage, StorageBackend
from strata.testing import StorageTests


class TestLocal(StorageTests):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> StorageBackend:
        return LocalStorage(tmp_path / "root")

    def assert_nothing_is_left(self, store: BlockingStorage) -> None:
        assert isinstance(store.storage, LocalStorage)
        assert list(store.storage.root.glob(".strata-tmp/*.part")) == []
