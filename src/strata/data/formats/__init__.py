"""The formats, by name. Each is a small frozen struct of its options, so that an index says how it was read."""

from typing import Any, TypeAlias

from strata.data.formats.arrow import Arrow
from strata.data.formats.csv import Csv
from strata.data.formats.files import Files
from strata.data.formats.jsonl import Jsonl
from strata.data.formats.parquet import Parquet
from strata.data.formats.tfexample import TFExample
from strata.data.formats.tfrecord import TFRecord
from strata.data.formats.webdataset import WebDataset
from strata.errors import InvalidInput

AnyFormat: TypeAlias = Parquet | Arrow | Csv | Jsonl | WebDataset | TFRecord | TFExample | Files

FORMATS: dict[str, type[AnyFormat]] = {
    "parquet": Parquet,
    "arrow": Arrow,
    "feather": Arrow,
    "csv": Csv,
    "jsonl": Jsonl,
    "webdataset": WebDataset,
    "tfrecord": TFRecord,
    "tfexample": TFExample,
    "files": Files,
}


def format_of(format: str | AnyFormat, **options: Any) -> AnyFormat:
    """The format of this name, with these options; one that is a format already, itself."""
    if not isinstance(format, str):
        if not isinstance(format, tuple(FORMATS.values())):
            raise InvalidInput(f"format must be one of {', '.join(FORMATS)}, not {type(format).__name__}")
        return format
    if not format:
        raise InvalidInput(f'say which format it is, such as format="parquet": Strata reads {", ".join(FORMATS)}')
    if format not in FORMATS:
        raise InvalidInput(f"{format!r} is not a format that Strata reads: {', '.join(FORMATS)}")
    try:
        return FORMATS[format](**options)
    except TypeError as error:
        raise InvalidInput(f"format {format!r}: {error}") from None


def format_name(format: AnyFormat) -> str:
    """Its name."""
    return str(type(format).__struct_config__.tag)
