"""The interfaces that gRPC cases speak: ``.proto`` files of the suite's own, compiled when the first is asked for.

They are what clients of FluxMQ and GoQueue were made of: a broker with other numbers of fields fails.
"""

from __future__ import annotations

import tempfile
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

FILES: Final = ("fluxmq_queue_v1.proto", "goqueue_v1.proto")
FLUXMQ, GOQUEUE, HEALTH = "fluxmq.queue.v1.QueueService", "goqueue.v1", "grpc.health.v1.Health"
NEEDED: Final = ("grpc", "grpc_tools", "google.rpc")
ADVICE: Final = "gRPC is asked by a library that is not installed here: pip install 'assay-mq[grpc]'"
DETAILS: Final = "grpc-status-details-bin"


def is_installed() -> bool:
    """Whether this Python has what gRPC needs."""
    try:
        return all(find_spec(name) is not None for name in NEEDED)
    except ModuleNotFoundError:
        return False


class Method(NamedTuple):
    """One method of a service."""

    path: str
    request: Any
    """Class of its messages."""
    response: Any
    streams: bool
    """The broker answers with any number of messages."""


class Interface:
    """All services of the files, and gRPC's own health."""

    def __init__(self) -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, empty_pb2, timestamp_pb2
        from grpc_tools import protoc

        folder, known = Path(str(files(__package__))), Path(str(files("grpc_tools"))) / "_proto"
        self._pool: Any = descriptor_pool.DescriptorPool()
        for module in (duration_pb2, empty_pb2, timestamp_pb2):
            self._pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        with tempfile.TemporaryDirectory() as scratch:
            target = Path(scratch) / "set"
            if protoc.main(["protoc", f"-I{folder}", f"-I{known}", f"--descriptor_set_out={target}", *FILES]):
                message = "the .proto files cannot be compiled"
                raise RuntimeError(message)
            for each in descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file:
                self._pool.Add(each)

    def method(self, path: str) -> Method:
        """By service and name, as in ``goqueue.v1.AckService/Ack``."""
        from google.protobuf import message_factory

        service, _, name = path.partition("/")
        found = self._pool.FindServiceByName(service).methods_by_name[name]
        request, response = (message_factory.GetMessageClass(kind) for kind in (found.input_type, found.output_type))
        return Method(f"/{path}", request, response, found.server_streaming)

    def message(self, name: str) -> Any:
        """A class of messages by its whole name."""
        from google.protobuf import message_factory

        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))


@lru_cache(1)
def interface() -> Interface:
    """Compiled once."""
    return Interface()
