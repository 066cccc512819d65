"""Server reflection: what is served, told to tools such as grpcurl. Both names it goes by, `v1` and `v1alpha`."""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from strata.rpc.service import Call, Kind, Method
from strata.rpc.status import Status

_PATHS = (
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)


class Reflection:
    """Tells of the services named, and of every protobuf file this process knows."""

    def __init__(self, services: Iterable[str]) -> None:
        from google.protobuf.descriptor_pool import Default
        from grpc_reflection.v1alpha import reflection_pb2

        self._messages: Any = reflection_pb2
        self._pool: Any = Default()
        self._services = sorted({*services, "grpc.reflection.v1alpha.ServerReflection"})

    def methods(self) -> list[Method]:
        """The messages of the two versions are the same on the wire."""
        read = self._messages.ServerReflectionRequest.FromString
        write = self._messages.ServerReflectionResponse.SerializeToString
        return [Method(path, self._info, Kind.BOTH_STREAM, read, write) for path in _PATHS]

    async def _info(self, requests: AsyncIterator[Any], call: Call) -> AsyncIterator[Any]:
        async for request in requests:
            answer = self._messages.ServerReflectionResponse(valid_host=request.host, original_request=request)
            try:
                self._fill(answer, request)
            except KeyError:
                answer.error_response.error_code = Status.NOT_FOUND
                answer.error_response.error_message = "no such symbol or file is known here"
            yield answer

    def _fill(self, answer: Any, request: Any) -> None:
        asked = request.WhichOneof("message_request")
        pool = self._pool
        if asked == "list_services":
            answer.list_services_response.service.extend(
                self._messages.ServiceResponse(name=name) for name in self._services
            )
        elif asked == "file_by_filename":
            self._files(answer, lambda: pool.FindFileByName(request.file_by_filename))
        elif asked == "file_containing_symbol":
            self._files(answer, lambda: pool.FindFileContainingSymbol(request.file_containing_symbol))
        elif asked == "file_containing_extension":
            extended = request.file_containing_extension
            message = pool.FindMessageTypeByName(extended.containing_type)
            self._files(answer, lambda: pool.FindExtensionByNumber(message, extended.extension_number).file)
        elif asked == "all_extension_numbers_of_type":
            message = pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
            answer.all_extension_numbers_response.base_type_name = message.full_name
            answer.all_extension_numbers_response.extension_number.extend(
                sorted(extension.number for extension in pool.FindAllExtensions(message))
            )
        else:
            answer.error_response.error_code = Status.INVALID_ARGUMENT
            answer.error_response.error_message = "the request asks for nothing"

    def _files(self, answer: Any, find: Callable[[], Any]) -> None:
        """The file and all that it imports, so that a tool need not ask again."""
        found, wanted = {}, [find()]
        while wanted:
            file = wanted.pop()
            if file.name not in found:
                found[file.name] = file.serialized_pb
                wanted.extend(file.dependencies)
        answer.file_descriptor_response.file_descriptor_proto.extend(found.values())
