"""The messages of `proto/strata/v1/coordinator.proto`, made when this is imported from `coordinator.binpb`.

There is no generated code, which would be tied to one major version of protobuf: a training environment has the one
that its other packages chose. `make proto` writes `coordinator.binpb` and `coordinator_pb2.pyi` anew.
"""

from importlib.resources import files

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

_descriptors = descriptor_pb2.FileDescriptorSet.FromString(
    files("strata.v1").joinpath("coordinator.binpb").read_bytes()
)
for _file in _descriptors.file:
    descriptor_pool.Default().Add(_file)

DESCRIPTOR = descriptor_pool.Default().FindFileByName("strata/v1/coordinator.proto")

for _name, _message in DESCRIPTOR.message_types_by_name.items():
    globals()[_name] = message_factory.GetMessageClass(_message)
for _name, _enum in DESCRIPTOR.enum_types_by_name.items():
    globals()[_name] = EnumTypeWrapper(_enum)
    globals().update({value.name: value.number for value in _enum.values})
