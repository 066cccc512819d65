"""Where checkpoints and data live: one small interface, and a file for each backend.

A backend is a flat set of objects under keys such as `job/checkpoints/step_10/metadata.json`. Objects are written
whole: a reader sees the old object or the new one, never a mixture, and once a write has returned it is durable.
"""

from strata.storage.azure import AzureStorage
from strata.storage.backend import ObjectInfo, StorageBackend, StorageOptions, StorageWriter
from strata.storage.blocking import BlockingStorage
from strata.storage.gcs import GCSStorage
from strata.storage.local import LocalStorage
from strata.storage.memory import MemoryStorage
from strata.storage.s3 import S3Storage
from strata.storage.urls import open_storage

__all__ = [
    "AzureStorage",
    "BlockingStorage",
    "GCSStorage",
    "LocalStorage",
    "MemoryStorage",
    "ObjectInfo",
    "S3Storage",
    "StorageBackend",
    "StorageOptions",
    "StorageWriter",
    "open_storage",
]
