import secrets

import pytest

from strata.storage import BlockingStorage, StorageBackend, StorageOptions
from strata.storage.s3 import S3Storage
from strata.testing import StorageTests
from tests.servers.processes import BUCKET, S3_KEY, S3_SECRET, Server, s3_client

pytestmark = pytest.mark.xdist_group("seaweedfs")

OPTIONS = StorageOptions(part_bytes=8 << 20, concurrency=4, timeout_seconds=30, retries=3, retry_seconds=20)


class TestS3(StorageTests):
    forgets_empty_folders = False

    @pytest.fixture
    def storage(self, s3_server: Server) -> StorageBackend:
        self.endpoint = s3_server.endpoint
        return S3Storage(
            BUCKET,
            prefix=secrets.token_hex(8),
            endpoint=s3_server.endpoint,
            access_key_id=S3_KEY,
            secret_access_key=S3_SECRET,
            options=OPTIONS,
        )

    def assert_nothing_is_left(self, store: BlockingStorage) -> None:
        uploads = s3_client(self.endpoint).list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        mine = store.url.rpartition("/")[2]
        assert [upload["Key"] for upload in uploads if upload["Key"].startswith(mine)] == []
