"""gRPC of a running broker: a server of grpc.aio for each of its listeners."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from assay.reference_broker.api.service import Service
from assay.reference_broker.config import ConfigError, GrpcConfig, ListenerConfig, Scope, TlsConfig, is_loopback
from assay.reference_broker.grpc_api import fluxmq, goqueue_groups, goqueue_messages, schema
from assay.reference_broker.grpc_api.guard import Call, Guard, Method

_GOODBYE_S: Final = 5.0
"""For calls that are under way when the broker stops."""
_KEEPALIVE_MS: Final = 60_000
_KEEPALIVE_TIMEOUT_MS: Final = 20_000
_IDENTITY_ONLY: Final = 1
"""A message that is compressed would be of any size once it is not."""
_MODULES: Final[Mapping[str, Any]] = {
    "fluxmq.queue.v1.QueueService": fluxmq,
    "goqueue.v1.PublishService": goqueue_messages,
    "goqueue.v1.ConsumeService": goqueue_messages,
    "goqueue.v1.AckService": goqueue_messages,
    "goqueue.v1.OffsetService": goqueue_groups,
    "goqueue.v1.TransactionService": goqueue_groups,
    "goqueue.v1.HealthService": goqueue_groups,
}


class GrpcServer:
    """Made once for a broker, when its first listener speaks gRPC."""

    def __init__(self, service: Service, config: GrpcConfig) -> None:
        self._service = service
        self._config = config
        self._servers: list[Any] = []
        self._health = health.aio.HealthServicer()
        self._names = [each.full_name for each in schema.services()]

    async def listen(self, listener: ListenerConfig, where: str) -> tuple[str, int]:
        """Start a listener; returns its address. Raises :class:`OSError`, ``ConfigError``."""
        config, tls = self._config, listener.tls
        options = (
            # Two brokers on one port would share its clients.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", config.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", config.max_metadata_bytes),
            ("grpc.absolute_max_metadata_size", config.max_metadata_bytes),
            ("grpc.max_concurrent_streams", config.max_streams),
            ("grpc.max_allowed_incoming_connections", listener.max_connections),
            ("grpc.max_connection_idle_ms", int(config.idle_s * 1000)),
            # Whose machine is gone has its streams ended, and what they held is ready again.
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
            ("grpc.server_handshake_timeout_ms", int((tls.handshake_timeout_s if tls is not None else 10) * 1000)),
            ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
        )
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=config.max_calls)
        named = tls is not None and tls.use_certificate_name_as_username
        self._add_services(server, Guard(self._service, config, loopback=is_loopback(listener.host), named=named))
        host = f"[{listener.host}]" if ":" in listener.host else listener.host
        try:
            if tls is None:
                port = server.add_insecure_port(f"{host}:{listener.port}")
            else:
                port = server.add_secure_port(f"{host}:{listener.port}", _credentials(tls, f"{where}.tls"))
        except RuntimeError as error:
            message = f"cannot listen on {host}:{listener.port}: the address is in use, or not this machine's"
            raise OSError(message) from error
        await server.start()
        for name in self._names:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._servers.append(server)
        return listener.host, port

    def _add_services(self, server: Any, guard: Guard) -> None:
        for service in schema.services():
            module = _MODULES[service.full_name]
            handlers = {
                kind.name: guard.handler(
                    getattr(module, _snake(kind.name)).method,
                    kind,
                    schema.message_class(kind.input_type),
                    schema.message_class(kind.output_type),
                )
                for kind in service.methods
            }
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        self._add_standard(server, guard, health_pb2, self._health)
        if self._config.reflection:
            known = schema.pool()
            for module in (health_pb2, reflection_pb2):
                known.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
            names = [*self._names, *(_only(module).full_name for module in (health_pb2, reflection_pb2))]
            servicer = reflection.aio.ReflectionServicer(names, known)
            self._add_standard(server, guard, reflection_pb2, servicer)

    def _add_standard(self, server: Any, guard: Guard, module: Any, servicer: Any) -> None:
        """Serve one of gRPC's own services, by the library's class; anybody may ask whether the broker is there."""
        service = _only(module)
        handlers = {
            kind.name: guard.handler(
                Method(_adapted(getattr(servicer, kind.name), kind), None if kind.name == "Check" else Scope.READ),
                kind,
                getattr(module, kind.input_type.name),
                getattr(module, kind.output_type.name),
            )
            for kind in service.methods
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))

    async def close(self) -> None:
        """Let calls that are under way end, and who waits for messages go without; then cut what is left."""
        self._service.stop()
        await self._health.enter_graceful_shutdown()
        for server in self._servers:
            with contextlib.suppress(Exception):
                await server.stop(_GOODBYE_S)


def _adapted(function: Any, kind: Any) -> Callable[[Call, Any], Awaitable[Any]]:
    """A method of the library's, served like one of ours."""
    if kind.client_streaming:

        async def converse(call: Call, _asked: Any) -> None:
            async for answer in function(call.messages(), None):
                await call.write(answer)

        return converse

    async def answer(call: Call, asked: Any) -> Any:
        with call.aside():
            return await function(asked, call.context)

    return answer


def _only(module: Any) -> Any:
    (service,) = module.DESCRIPTOR.services_by_name.values()
    return service


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _credentials(tls: TlsConfig, where: str) -> Any:
    """As :func:`assay.reference_broker.server.tls.server_context`, which has looked at the files before."""
    try:
        named = [(tls.key, tls.certificate), *((each.key, each.certificate) for each in tls.certificates)]
        pairs = [tuple(Path(path).read_bytes() for path in pair) for pair in named]
        authority = Path(tls.client_certificate_authority).read_bytes() if tls.require_client_certificate else None
    except OSError as error:
        raise ConfigError(f"{where}: {error}") from error
    return grpc.ssl_server_credentials(pairs, authority, tls.require_client_certificate)
