"""tf.train.Example as protobuf itself has it, from a description of our own: what Strata reads is held against it."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

DESCRIPTION = """
name: "oracle/example.proto" package: "oracle" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type {
  name: "Feature"
  oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".oracle.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".oracle.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".oracle.Int64List" oneof_index: 0 }
}
message_type {
  name: "Features"
  nested_type {
    name: "FeatureEntry"
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".oracle.Feature" }
    options { map_entry: true }
  }
  field {
    name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".oracle.Features.FeatureEntry"
  }
}
message_type { name: "Example" field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".oracle.Features" } }
"""

_pool = descriptor_pool.DescriptorPool()
_pool.Add(text_format.Parse(DESCRIPTION, descriptor_pb2.FileDescriptorProto()))
Example: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName("oracle.Example"))

Feature = tuple[str, list[Any]]
"""A kind (`bytes`, `float` or `int64`) and the values."""


def encoded(features: Mapping[str, Feature]) -> bytes:
    """As every program with protobuf writes it."""
    example = Example()
    for name, (kind, values) in features.items():
        made = getattr(example.features.feature[name], f"{kind}_list")
        made.SetInParent()
        made.value.extend(values)
    return bytes(example.SerializeToString())


def decoded(record: bytes) -> dict[str, Feature]:
    """What protobuf reads. A feature that says nothing is none. DecodeError if it is no Example."""
    found = {}
    for name, feature in Example.FromString(record).features.feature.items():
        if kind := feature.WhichOneof("kind"):
            found[name] = kind.removesuffix("_list"), list(getattr(feature, kind).value)
    return found
