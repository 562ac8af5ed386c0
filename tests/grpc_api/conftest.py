"""One broker a module, with gRPC on loopback; clients by grpcio's synchronous library, in the test's thread."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import grpc
import msgspec
import pytest

from assay.reference_broker.auth import hash_password, hash_token
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import (
    AuthConfig,
    BrokerConfig,
    GrpcConfig,
    HttpConfig,
    ListenerConfig,
    ListenerProtocol,
    QueueConfig,
    QueuesConfig,
    Scope,
    TenantConfig,
    TokenConfig,
    UserConfig,
)
from assay.reference_broker.grpc_api import schema

GRPC = (ListenerProtocol.GRPC,)


class Service:
    """A service of a broker: its methods as functions, in their own names."""

    def __init__(self, channel: grpc.Channel, name: str, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self._channel = channel
        self._name = name
        self._metadata = metadata
        self._kinds = {kind.name: kind for each in schema.services() if each.full_name == name for kind in each.methods}

    def __getattr__(self, method: str) -> Any:
        kind = self._kinds[method]
        asked, answer = (schema.message_class(each) for each in (kind.input_type, kind.output_type))
        make = getattr(
            self._channel,
            f"{'stream' if kind.client_streaming else 'unary'}_{'stream' if kind.server_streaming else 'unary'}",
        )
        call = make(f"/{self._name}/{method}", asked.SerializeToString, answer.FromString)

        def begin(request: Any = None, timeout: float = 20.0, **fields: Any) -> Any:
            return call(asked(**fields) if request is None else request, timeout=timeout, metadata=self._metadata)

        return begin


def when_there_is_room(call: Any, **fields: Any) -> Any:
    """What a call answers once it is let in: one that ended, or begins to wait, gives its place up a moment later."""
    while True:
        try:
            return call(**fields)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise


class Served:
    """A broker, and clients of it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.targets = [f"{each.host}:{each.port}" for each in broker.addresses if each.scheme == "grpc"]
        self._channels: list[grpc.Channel] = []

    def channel(self, listener: int = 0, *options: tuple[str, Any]) -> grpc.Channel:
        own = ("grpc.use_local_subchannel_pool", 1)
        target = self.targets[listener].replace("0.0.0.0", "127.0.0.1")
        made = grpc.insecure_channel(target, options=(own, *options))
        self._channels.append(made)
        return made

    def fluxmq(self, authorization: str = "", listener: int = 0) -> Service:
        metadata = (("authorization", authorization),) if authorization else ()
        return Service(self.channel(listener), "fluxmq.queue.v1.QueueService", metadata)

    def goqueue(self, service: str, authorization: str = "", listener: int = 0) -> Service:
        metadata = (("authorization", authorization),) if authorization else ()
        return Service(self.channel(listener), f"goqueue.v1.{service}", metadata)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


def serve(config: BrokerConfig | None = None, http: HttpConfig | None = None, **settings: Any) -> Broker:
    """A broker with MQTT and gRPC, on loopback and beyond; ``settings``: of ``grpc``."""
    listeners = (
        ListenerConfig(port=0),
        ListenerConfig(port=0, protocols=GRPC),
        ListenerConfig(host="0.0.0.0", port=0, protocols=GRPC),
    )
    return Broker(
        msgspec.structs.replace(
            config or BrokerConfig(), listeners=listeners, grpc=GrpcConfig(**settings), http=http or HttpConfig()
        )
    )


def secured() -> BrokerConfig:
    """Ann, who belongs to nobody; Tom, of the tenant acme; tokens of Ann by the name of what they may do."""
    users = tuple(
        UserConfig(username=name, password_hash=hash_password(password))
        for name, password in (("ann", b"secret"), ("tom", b"hidden"))
    )
    tokens = tuple(
        TokenConfig(name=scope.value, user="ann", hash=hash_token(f"assay_{scope.value}"), scopes=(scope,))
        for scope in Scope
    )
    return BrokerConfig(
        auth=AuthConfig(users=users, tokens=tokens),
        queues=QueuesConfig(
            tenants=(TenantConfig(name="acme", users=("tom",)),),
            configured=(QueueConfig(name="orders", partitions=2), QueueConfig(name="acme.orders", partitions=1)),
        ),
    )


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Without users: whoever is on loopback may do everything."""
    with serve() as broker:
        made = Served(broker)
        yield made
        made.close()


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    """With users and tokens."""
    with serve(secured()) as broker:
        made = Served(broker)
        yield made
        made.close()
