"""Google Cloud Storage."""

import json
import os
from typing import Any

from strata.core.ids import check_texts
from strata.storage.backend import StorageOptions
from strata.storage.objectstore import ObjectStorage


class GCSStorage(ObjectStorage):
    """A bucket, or a prefix in one.

    Credentials: a service account's key file, given or in GOOGLE_APPLICATION_CREDENTIALS, else the machine's workload
    identity. `endpoint`, or STORAGE_EMULATOR_HOST, is an emulator that asks for none.
    """

    hints = (
        (
            r"metadata\.google|169\.254|token request|credential",
            "No credentials were found: set GOOGLE_APPLICATION_CREDENTIALS, or give the machine a service account",
        ),
        (r"invalid_grant|401|unauthenticated", "The credentials are not valid: see GOOGLE_APPLICATION_CREDENTIALS"),
        (r"403|forbidden", "The account may not do this: it needs the role Storage Object Admin on the bucket"),
        (r"error sending request|dns error|connect", "Nothing answers there: does the network lead there?"),
    )

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "",
        endpoint: str | None = None,
        service_account_path: str | None = None,
        options: StorageOptions | None = None,
    ) -> None:
        check_texts(endpoint=endpoint, service_account_path=service_account_path)
        emulator = endpoint or os.environ.get("STORAGE_EMULATOR_HOST")
        settings: dict[str, Any] = {}
        if emulator:
            where = emulator if "://" in emulator else f"http://{emulator}"
            account = {"gcs_base_url": where, "disable_oauth": True, "client_email": "", "private_key": ""}
            settings["service_account_key"] = json.dumps({**account, "private_key_id": ""})
        elif service_account_path:
            settings["service_account"] = service_account_path

        def make(obstore: Any, client: dict[str, Any]) -> Any:
            client["client_options"]["allow_http"] = bool(emulator)
            return obstore.store.GCSStore(bucket, **settings, **client)

        super().__init__(f"gs://{bucket}", prefix, make, options)
