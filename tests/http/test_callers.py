"""Who asks, and what they may."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace

import pytest

from assay.reference_broker.api.callers import Callers, Credentials, read_authorization
from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.auth import Authenticator, hash_token, new_token
from assay.reference_broker.config import AuthConfig, ConfigError, TokenConfig
from tests.http.conftest import Served, secured

VERSION = "/api/v1/version"


def _basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


def test_passwords_and_tokens(guarded: Served) -> None:
    client = guarded.client()
    for _ in range(2):  # the second one is remembered
        assert client.get(VERSION, auth=("ann", "secret")).status_code == 200
    for wrong in (_basic("ann:wrong"), _basic("nobody:secret"), _basic("ann"), "Bearer assay_old", "Bearer x", "Ann"):
        answer = client.get(VERSION, headers={"authorization": wrong})
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert answer.headers["www-authenticate"].startswith("Basic ")
    assert client.get(VERSION).status_code == 401
    assert client.get("/nowhere").status_code == 401
    assert client.get("/health").status_code == 200
    assert client.get(VERSION, headers={"authorization": "Bearer assay_reader"}).status_code == 200


@pytest.mark.parametrize(("token", "status"), [("reader", 403), ("writer", 403), ("admin", 200)])
def test_a_token_may_no_more_than_its_scopes(guarded: Served, token: str, status: int) -> None:
    client = guarded.client(1, authorization=f"Bearer assay_{token}")
    assert client.get("/api/v1/queues/orders").status_code == status


def test_beyond_loopback_a_password_administers_nothing_without_rules(guarded: Served) -> None:
    assert guarded.client().get("/api/v1/queues/orders", auth=("ann", "secret")).status_code == 200
    answer = guarded.client(1).get("/api/v1/queues/orders", auth=("ann", "secret"))
    assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed")


def test_who_belongs_to_a_tenant_administers_nothing(guarded: Served) -> None:
    client = guarded.client()
    client.auth = ("tom", "hidden")
    assert client.get("/api/v1/queues/orders").status_code == 403
    assert client.get("/api/v1/queues").json()["queues"] == ["orders"]
    assert client.get("/api/v1/queues/orders/stats").json()["partitions"] == 1


def test_clients_of_fluxmq_name_themselves(guarded: Served) -> None:
    client = guarded.client()
    for scheme in ("Bearer ", "Client ", ""):
        headers = {"x-fluxmq-username": "ann", "authorization": f"{scheme}secret"}
        assert client.get(VERSION, headers=headers).status_code == 200
    assert client.get(VERSION, headers={"x-fluxmq-username": "ann"}).status_code == 401


def test_beyond_loopback_nobody_is_served_without_a_user(served: Served) -> None:
    assert served.client().get(VERSION).status_code == 200
    assert served.client(1).get(VERSION).status_code == 401


def test_the_authorization_header() -> None:
    assert read_authorization(_basic("ann:a:b")) == Credentials(username="ann", password=b"a:b")
    assert read_authorization("bearer  t ") == Credentials(token="t")
    for text in ("", "Digest x", "Basic ???", f"Bearer {'x' * 5_000}", "Bearer"):
        with pytest.raises(RequestError) as caught:
            read_authorization(text)
        assert caught.value.code is Code.UNAUTHENTICATED


def test_tokens_are_kept_as_hashes_and_can_be_taken_back() -> None:
    token = new_token()
    auth = secured().auth
    entry = TokenConfig(name="t", user="ann", hash=hash_token(token), expires_at=100.0)
    known = Authenticator(AuthConfig(users=auth.users, tokens=(entry,)), b"key")
    assert known.token(token, 99.0) == entry
    assert known.token(token, 100.0) is None
    assert known.token(token + "x", 1.0) is None
    known.configure(AuthConfig(users=auth.users))
    assert known.token(token, 1.0) is None
    for wrong in (
        (TokenConfig(name="t", user="ann", hash="sha256$12"),),
        (TokenConfig(name="t", user="eve", hash=hash_token("x")),),
        (entry, entry),
    ):
        with pytest.raises(ConfigError):
            Authenticator(AuthConfig(users=auth.users, tokens=wrong), b"key")


def test_users_that_change_while_a_password_is_checked_are_asked_again() -> None:
    auth = secured().auth
    authenticator = Authenticator(auth, b"key")

    async def ask() -> None:
        driver = SimpleNamespace(node=SimpleNamespace(authenticator=authenticator), loop=asyncio.get_running_loop())
        callers = Callers(SimpleNamespace(turn=lambda: (driver, 0.0)))  # type: ignore[arg-type]  # all that it asks for
        asking = asyncio.create_task(callers._check("ann", b"secret"))
        await asyncio.sleep(0)
        (check,) = authenticator.take_checks()
        authenticator.configure(AuthConfig(users=auth.users[:1]))
        check.run()
        authenticator.finish(check)
        with pytest.raises(RequestError, match="try again") as told:
            await asking
        assert told.value.code is Code.BUSY

    asyncio.run(ask())
