"""tf.train.Example by protobuf itself, for records that are written in an unusual way.

A message may be written in many ways: fields in any order, twice, lists packed or one value at a time, with fields that
nobody knows. Practically all writers choose the same one, which `data.formats.examples` reads at once for many records.
Any other is turned into it here, by the only code that is right in all cases.
"""

from functools import cache
from typing import Any

import numpy as np

from strata.data.columnar import arrow
from strata.data.damage import Misfit
from strata.data.formats.records import Records

_PACKAGE = "tensorflow"


def rewritten(records: Records) -> Records:
    """The same records, written in the usual way. Misfit for one that is no Example."""
    view, made = memoryview(records.data), []
    bounds = zip(records.starts.tolist(), records.ends.tolist(), strict=True)
    for row, (start, end) in enumerate(bounds):
        made.append(_rewritten(bytes(view[start:end]), row))
    ends = np.cumsum([len(each) for each in made], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if made else ends
    return Records(arrow().py_buffer(b"".join(made)), starts, ends)


def _rewritten(record: bytes, row: int) -> bytes:
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    try:
        example = _example_class().FromString(record)
    except DecodeError as error:
        raise Misfit(row, "is no tf.train.Example. Records as they are can be read with format='tfrecord'") from error
    if len(UnknownFieldSet(example)):
        raise Misfit(
            row,
            "has fields that a tf.train.Example has not: it may be a SequenceExample. Records as they are can be read "
            "with format='tfrecord'",
        )
    example.DiscardUnknownFields()
    written: bytes = example.SerializeToString()
    return written


@cache
def _example_class() -> Any:
    """Made here, in a pool of its own: TensorFlow has the same names for itself."""
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))


def _file() -> Any:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto(name="strata_example.proto", package=_PACKAGE, syntax="proto3")
    lists = {"BytesList": Field.TYPE_BYTES, "FloatList": Field.TYPE_FLOAT, "Int64List": Field.TYPE_INT64}
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(lists.items(), 1):
        file.message_type.add(name=name).field.add(name="value", number=1, label=Field.LABEL_REPEATED, type=kind)
        feature.field.add(
            name=f"{name}_", number=number, type=Field.TYPE_MESSAGE, type_name=f".{_PACKAGE}.{name}", oneof_index=0
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING)
    entry.field.add(name="value", number=2, type=Field.TYPE_MESSAGE, type_name=f".{_PACKAGE}.Feature")
    features.field.add(
        name="feature",
        number=1,
        label=Field.LABEL_REPEATED,
        type=Field.TYPE_MESSAGE,
        type_name=f".{_PACKAGE}.Features.FeatureEntry",
    )
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, type=Field.TYPE_MESSAGE, type_name=f".{_PACKAGE}.Features")
    return file
