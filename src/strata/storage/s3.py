"""Amazon S3 and whatever speaks its language."""

import os
from typing import Any

from strata.core.ids import check_texts
from strata.errors import InvalidInput
from strata.storage.backend import StorageOptions
from strata.storage.objectstore import ObjectStorage


class S3Storage(ObjectStorage):
    """A bucket, or a prefix in one.

    What is not given comes from the environment (AWS_REGION, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …) and, where there
    is no key, from the machine's role: EC2, ECS, EKS pod identity or web identity.
    """

    deletes_in_bulk = True

    hints = (
        (r"SignatureDoesNotMatch", "The secret key does not belong to the access key: see AWS_SECRET_ACCESS_KEY"),
        (r"InvalidAccessKeyId", "The access key is not known there: see AWS_ACCESS_KEY_ID, and AWS_ENDPOINT_URL"),
        (r"ExpiredToken", "The session token has expired: renew AWS_SESSION_TOKEN"),
        (r"RequestTimeTooSkewed", "This machine's clock is wrong: set it"),
        (
            r"PermanentRedirect|AuthorizationHeaderMalformed|BareRedirect|without a LOCATION|301 Moved",
            "The bucket is in another region: see AWS_REGION",
        ),
        (
            r"169\.254|instance metadata|credential|Missing AccessKeyId|Missing SecretAccessKey",
            "No credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role",
        ),
        (r"AccessDenied|403", "The credentials are valid but do not allow it: see the bucket's and the role's policy"),
        (
            r"error sending request|dns error|connect",
            "Nothing answers there: see AWS_ENDPOINT_URL, and whether the network leads there",
        ),
    )

    def __init__(
        self,
        bucket: str,
        region: str | None = None,
        *,
        prefix: str = "",
        endpoint: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        options: StorageOptions | None = None,
    ) -> None:
        check_texts(region=region, endpoint=endpoint, access_key_id=access_key_id)
        check_texts(secret_access_key=secret_access_key, session_token=session_token)
        where = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if where and not where.startswith(("http://", "https://")):
            raise InvalidInput(f"the S3 endpoint must begin with http:// or https://, not {where!r}")
        settings = {
            "region": region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
            "endpoint": where,
            "access_key_id": access_key_id,
            "secret_access_key": secret_access_key,
            "session_token": session_token,
        }
        given = {name: value for name, value in settings.items() if value}

        def make(obstore: Any, client: dict[str, Any]) -> Any:
            client["client_options"]["allow_http"] = bool(where and where.startswith("http://"))
            return obstore.store.S3Store(bucket, **given, **client)

        super().__init__(f"s3://{bucket}", prefix, make, options)
