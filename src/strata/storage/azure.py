"""Azure Blob Storage."""

import os
from typing import Any

from strata.core.ids import check_texts
from strata.errors import InvalidInput
from strata.storage.backend import StorageOptions
from strata.storage.objectstore import ObjectStorage


class AzureStorage(ObjectStorage):
    """A container, or a prefix in one.

    What is not given comes from AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY,
    AZURE_STORAGE_SAS_TOKEN or AZURE_CLIENT_ID and kin; where there is no key, from the machine's managed identity.
    """

    hints = (
        (
            r"169\.254|credential",
            "No credentials were found: set AZURE_STORAGE_ACCOUNT_KEY, or give the machine an identity",
        ),
        (r"AuthenticationFailed|401", "The account key or token is not valid: see AZURE_STORAGE_ACCOUNT_KEY"),
        (r"AuthorizationPermissionMismatch|403", "The identity needs the role Storage Blob Data Contributor"),
        (r"error sending request|dns error|connect", "Nothing answers there: is the account's name right?"),
    )

    def __init__(
        self,
        container: str,
        *,
        prefix: str = "",
        account: str | None = None,
        account_key: str | None = None,
        endpoint: str | None = None,
        options: StorageOptions | None = None,
    ) -> None:
        check_texts(account=account, account_key=account_key, endpoint=endpoint)
        said = _connection_string(os.environ.get("AZURE_STORAGE_CONNECTION_STRING", ""))
        name = account or said.get("AccountName") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        if not name:
            raise InvalidInput(
                "the Azure storage account is not known: give `account`, or set AZURE_STORAGE_ACCOUNT_NAME or "
                "AZURE_STORAGE_CONNECTION_STRING"
            )
        where = endpoint or said.get("BlobEndpoint") or os.environ.get("AZURE_STORAGE_ENDPOINT")
        if not where and said.get("EndpointSuffix"):
            where = f"{said.get('DefaultEndpointsProtocol', 'https')}://{name}.blob.{said['EndpointSuffix']}"
        settings = {
            "account_name": name,
            "account_key": account_key or said.get("AccountKey"),
            "sas_key": said.get("SharedAccessSignature") or os.environ.get("AZURE_STORAGE_SAS_TOKEN"),
            "endpoint": where,
        }
        given = {key: value for key, value in settings.items() if value}

        def make(obstore: Any, client: dict[str, Any]) -> Any:
            client["client_options"]["allow_http"] = bool(where and where.startswith("http://"))
            return obstore.store.AzureStore(container, **given, **client)

        super().__init__(f"az://{container}", prefix, make, options)


def _connection_string(text: str) -> dict[str, str]:
    """`AccountName=…;AccountKey=…;…`; keys end in '=', so only the first one separates."""
    pairs = (part.partition("=") for part in text.split(";") if part)
    return {name.strip(): value for name, _, value in pairs}
