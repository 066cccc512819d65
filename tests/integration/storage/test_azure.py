import secrets

import pytest

from strata.storage import StorageBackend, StorageOptions
from strata.storage.azure import AzureStorage
from strata.testing import StorageTests
from tests.servers.processes import AZURE_ACCOUNT, AZURE_KEY, BUCKET, Server

pytestmark = pytest.mark.xdist_group("azurite")

OPTIONS = StorageOptions(part_bytes=8 << 20, concurrency=4, timeout_seconds=30, retries=3, retry_seconds=20)


class TestAzure(StorageTests):
    @pytest.fixture
    def storage(self, azure_server: Server) -> StorageBackend:
        return AzureStorage(
            BUCKET,
            prefix=secrets.token_hex(8),
            account=AZURE_ACCOUNT,
            account_key=AZURE_KEY,
            endpoint=azure_server.endpoint,
            options=OPTIONS,
        )
