"""One broker a module, with users, and HTTP on loopback and beyond."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from assay.reference_broker.auth import hash_password, hash_token
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import (
    AuthConfig,
    BrokerConfig,
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

HTTP = (ListenerProtocol.HTTP,)
TOKENS = {
    "reader": (Scope.READ,),
    "writer": (Scope.READ, Scope.WRITE),
    "admin": tuple(Scope),
}


class Served:
    """A broker, and clients of it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.urls = [address.url for address in broker.addresses if address.scheme == "http"]
        self._clients: list[httpx.Client] = []

    def client(self, listener: int = 0, **headers: str) -> httpx.Client:
        made = httpx.Client(base_url=self.urls[listener], timeout=60.0, headers=headers)
        self._clients.append(made)
        return made

    def until_waiting(self, count: int) -> None:
        """So many requests wait for messages. Asked without a poll: the one that it finds waiting could be refused."""
        client = self.client()
        while f"\nassay_http_waiting {count}" not in client.get("/metrics").raise_for_status().text:
            pass

    def close(self) -> None:
        for client in self._clients:
            client.close()


def serve(config: BrokerConfig | None = None, **http: Any) -> Broker:
    """A broker with MQTT and HTTP, on loopback and beyond."""
    config = config or BrokerConfig()
    listeners = (
        ListenerConfig(port=0),
        ListenerConfig(port=0, protocols=HTTP),
        ListenerConfig(host="0.0.0.0", port=0, protocols=HTTP),
    )
    return Broker(msgspec.structs.replace(config, listeners=listeners, http=HttpConfig(**http)))


def secured() -> BrokerConfig:
    """Ann, who belongs to nobody; Tom, of the tenant acme; tokens of Ann by the name of what they may do."""
    users = tuple(
        UserConfig(username=name, password_hash=hash_password(password))
        for name, password in (("ann", b"secret"), ("tom", b"hidden"))
    )
    tokens = tuple(
        TokenConfig(name=name, user="ann", hash=hash_token(f"assay_{name}"), scopes=scopes)
        for name, scopes in TOKENS.items()
    )
    old = TokenConfig(name="old", user="ann", hash=hash_token("assay_old"), expires_at=1.0)
    return BrokerConfig(
        auth=AuthConfig(users=users, tokens=(*tokens, old)),
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
