import secrets

import pytest

from strata.storage import StorageBackend, StorageOptions
from strata.storage.gcs import GCSStorage
from strata.testing import StorageTests
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
