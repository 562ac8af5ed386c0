"""The interface: the ``.proto`` files of this folder as classes of messages and descriptors of services."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    message_factory,
    timestamp_pb2,
)
from grpc_tools import protoc

FILES: Final = ("fluxmq_queue_v1.proto", "goqueue_v1.proto")
_WELL_KNOWN: Final = (duration_pb2, empty_pb2, timestamp_pb2)


class Messages:
    """Classes of the messages of one package, as attributes."""

    def __init__(self, package: str, pool: Any) -> None:
        self._package = package
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        try:
            found = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"{self._package}.{name}"))
        except KeyError:
            raise AttributeError(f"{self._package} has no message {name}") from None
        setattr(self, name, found)
        return found


@lru_cache(1)
def pool() -> Any:
    """A pool of descriptors of its own: what else the program has loaded is not in the way.

    Raises :class:`RuntimeError` for a mistake in the files, which protoc has told of on standard error.
    """
    folder = Path(str(files(__package__)))
    known = Path(str(files("grpc_tools"))) / "_proto"
    made = descriptor_pool.DescriptorPool()
    for module in _WELL_KNOWN:
        made.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "set"
        if protoc.main(["protoc", f"-I{folder}", f"-I{known}", f"--descriptor_set_out={target}", *FILES]):
            raise RuntimeError("the .proto files cannot be compiled")
        for each in descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file:
            made.Add(each)
    return made


def services() -> list[Any]:
    """Descriptors of all services."""
    found = pool()
    return [each for name in FILES for each in found.FindFileByName(name).services_by_name.values()]


def message_class(descriptor: Any) -> Any:
    """The class of messages that a descriptor stands for."""
    return message_factory.GetMessageClass(descriptor)


def empty() -> Any:
    """``google.protobuf.Empty``."""
    return Messages("google.protobuf", pool()).Empty()


@lru_cache(1)
def fluxmq() -> Any:
    """Messages of ``fluxmq.queue.v1``."""
    return Messages("fluxmq.queue.v1", pool())


@lru_cache(1)
def goqueue() -> Any:
    """Messages of ``goqueue.v1``."""
    return Messages("goqueue.v1", pool())
