"""HTTP as a listener: TLS, access rules, a broker that stops, and one without the extra."""

from __future__ import annotations

import importlib.util
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trustme
from typer.testing import CliRunner

from assay.cli import build_app
from assay.reference_broker.auth import hash_token
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import (
    AclConfig,
    AclRuleConfig,
    BrokerConfig,
    ConfigError,
    DefaultAccess,
    ListenerConfig,
    ListenerProtocol,
    Permission,
    TlsConfig,
    parse_config,
)
from assay.reference_broker.server import listeners
from tests.http.conftest import Served, secured, serve

HTTP = (ListenerProtocol.HTTP,)


def test_tls_and_a_certificate_that_says_who(tmp_path: Path) -> None:
    authority = trustme.CA()
    server, client = authority.issue_cert("localhost"), authority.issue_cert(common_name="ann")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    client.private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    tls = TlsConfig(
        certificate=str(tmp_path / "server.pem"),
        key=str(tmp_path / "server.pem"),
        client_certificate_authority=str(tmp_path / "ca.pem"),
        require_client_certificate=True,
        use_certificate_name_as_username=True,
    )
    rules = (AclRuleConfig(topic="$queue/%u/#", access=Permission.READWRITE),)
    config = BrokerConfig(listeners=(ListenerConfig(port=0, protocols=HTTP, tls=tls),), acl=AclConfig(rules=rules))
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    context.load_cert_chain(tmp_path / "client.pem")
    without = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with Broker(config) as broker, httpx.Client(verify=context) as client_of_ann:
        assert broker.url.startswith("https://")
        base = f"https://localhost:{broker.port}/api/v1/queues"
        body = {"messages": [{"payload": "x"}]}
        assert client_of_ann.post(f"{base}/ann/messages", json=body).status_code == 200
        assert client_of_ann.post(f"{base}/bob/messages", json=body).status_code == 403
        with pytest.raises(httpx.TransportError):
            httpx.get(f"https://localhost:{broker.port}/health", verify=without)


def test_access_rules_hold_beside_scopes() -> None:
    rules = (
        AclRuleConfig(topic="$queue/orders/#", access=Permission.READ, user="ann"),
        AclRuleConfig(topic="$admin/queue/orders/purge", access=Permission.WRITE, user="ann"),
    )
    config = BrokerConfig(auth=secured().auth, acl=AclConfig(default=DefaultAccess.DENY, rules=rules))
    with serve(config) as broker:
        served = Served(broker)
        ann = served.client(0, authorization="Bearer assay_admin")

        def status(method: str, path: str, body: Any = None) -> int:
            return ann.request(method, f"/api/v1/queues{path}", json=body).status_code

        assert status("POST", "/orders/consume", {"group": "g"}) == 200
        assert status("GET", "/orders/stats") == 200
        assert status("POST", "/orders/messages", {"messages": [{"payload": "x"}]}) == 403
        assert status("POST", "/others/consume", {"group": "g"}) == 403
        assert status("POST", "/orders/purge", {}) == 200
        assert status("DELETE", "/orders") == 403
        assert ann.get("/api/v1/queues").json()["queues"] == ["orders"]
        served.close()


def test_a_token_that_is_taken_back_is_refused_at_once() -> None:
    with serve(secured()) as broker:
        served = Served(broker)
        reader = served.client(1, authorization="Bearer assay_reader")
        assert reader.get("/api/v1/version").status_code == 200
        auth = broker.config.auth
        left = tuple(token for token in auth.tokens if token.hash != hash_token("assay_reader"))
        broker.reload(_with_tokens(broker.config, left))
        assert reader.get("/api/v1/version").status_code == 401
        served.close()


def _with_tokens(config: BrokerConfig, tokens: Any) -> BrokerConfig:
    return msgspec.structs.replace(config, auth=msgspec.structs.replace(config.auth, tokens=tokens))


def test_who_waits_is_answered_when_the_broker_stops() -> None:
    broker = serve().start()
    served = Served(broker)
    client = served.client()
    client.post("/api/v1/queues", json={"name": "q"})
    answers: list[httpx.Response] = []
    body = {"group": "g", "wait_s": 60}
    waiting = threading.Thread(target=lambda: answers.append(client.post("/api/v1/queues/q/consume", json=body)))
    waiting.start()
    served.until_waiting(1)
    broker.stop()
    waiting.join(20)
    assert [(each.status_code, each.json()) for each in answers] == [(200, {"messages": []})]
    served.close()


def test_http_has_a_port_of_its_own() -> None:
    assert ListenerConfig(protocols=HTTP).port == 8080
    with pytest.raises(ConfigError, match="http has a port of its own"):
        parse_config({"listeners": [{"protocols": ["mqtt", "http"]}]})
    with pytest.raises(ConfigError, match=r"http\.max_batch"):
        parse_config({"http": {"max_batch": 0}})


def test_without_the_extra_a_configured_listener_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(listeners, "find_spec", lambda name: None if name == "uvicorn" else found(name))
    (tmp_path / "broker.yaml").write_text("listeners: [{protocols: [http], port: 0}]\n")
    finished = CliRunner().invoke(build_app("serve"), ["serve", "--config", str(tmp_path / "broker.yaml")])
    assert finished.exit_code == 2
    assert finished.stderr.count("\n") == 1
    assert "'assay-mq[http]'" in finished.stderr


def test_a_broker_without_http_imports_none_of_it() -> None:
    others = {"fastapi", "uvicorn", "pydantic", "starlette", "prometheus_client", "assay.reference_broker.api.service"}
    script = f"import sys, assay.reference_broker.cli; print(sorted({others} & sys.modules.keys()))"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"


def test_a_token_is_printed_once_and_its_hash_for_the_configuration() -> None:
    finished = CliRunner().invoke(build_app("token"), ["token", "dash", "--user", "ann", "--scope", "write"])
    assert finished.exit_code == 0
    token = finished.stdout.strip()
    assert token.startswith("assay_")
    assert hash_token(token) in finished.stderr
    assert token not in finished.stderr
