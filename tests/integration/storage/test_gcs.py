import secrets
from collections.abc import Iterator

import pytest

from strata.storage import BlockingStorage, StorageBackend, StorageOptions
from strata.storage.gcs import GCSStorage
from strata.testing import StorageTests
from tests.servers.google import Google, google
from tests.servers.processes import BUCKET, Server

pytestmark = pytest.mark.xdist_group("azurite")

OPTIONS = StorageOptions(part_bytes=8 << 20, concurrency=4, timeout_seconds=30, retries=3, retry_seconds=20)


class TestGCS(StorageTests):
    """Google's client against a server that speaks the same XML, but knows nothing of generations."""

    enforces_conditions = False
    forgets_empty_folders = False

    @pytest.fixture
    def storage(self, gcs_server: Server) -> StorageBackend:
        return GCSStorage(BUCKET, prefix=secrets.token_hex(8), endpoint=gcs_server.endpoint, options=OPTIONS)


class TestGCSConditions:
    """Create-only and compare-and-swap, against the exchange that Google documents."""

    enforces_conditions = True
    needs_conditions = StorageTests.needs_conditions
    test_put_if_absent = StorageTests.test_put_if_absent_does_not_replace
    test_races = StorageTests.test_of_racing_writers_one_wins
    test_swap = StorageTests.test_compare_and_swap
    test_swaps = StorageTests.test_swaps_do_not_overwrite_each_other

    @pytest.fixture
    def server(self) -> Iterator[tuple[Google, str]]:
        with google() as found:
            yield found

    @pytest.fixture
    def store(self, server: tuple[Google, str]) -> Iterator[BlockingStorage]:
        with BlockingStorage(GCSStorage("bucket", endpoint=server[1], options=OPTIONS)) as store:
            yield store

    def test_the_condition_is_sent(self, server: tuple[Google, str], store: BlockingStorage) -> None:
        store.put_if_absent("a", b"1")
        _, version = store.read_versioned("a")
        store.compare_and_swap("a", b"2", version)
        store.write("a", b"3")
        assert server[0].conditions == ["0", "1700000000000001", None]
