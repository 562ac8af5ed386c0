"""Who asks, what they may, what is refused and how that is told; limits."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest
import trustme
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from assay.reference_broker.api.problems import PROBLEMS, RequestError
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import (
    BrokerConfig,
    ConfigError,
    HttpConfig,
    ListenerConfig,
    ListenerProtocol,
    TlsConfig,
    TlsVersion,
    check_config,
)
from assay.reference_broker.grpc_api import schema
from assay.reference_broker.grpc_api.errors import DETAILS, status_of, told
from tests.grpc_api.conftest import GRPC, Served, Service, basic, serve, when_there_is_room

M = schema.fluxmq()


def _refusal(call: object, **fields: object) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as refused:
        call(**fields)  # type: ignore[operator]
    return refused.value


def _details(error: grpc.RpcError) -> status_pb2.Status:
    return status_pb2.Status.FromString(dict(error.trailing_metadata())[DETAILS])


def test_every_problem_has_a_status_and_tells_its_code() -> None:
    for code in PROBLEMS:
        status, text, details = told(RequestError(code, "so it is"))
        assert status is status_of(code) is not grpc.StatusCode.UNKNOWN
        found = status_pb2.Status.FromString(details)
        assert (found.code, found.message, text) == (status.value[0], "so it is", "so it is")
        info = error_details_pb2.ErrorInfo()
        assert found.details[0].Unpack(info)
        assert (info.reason, info.domain) == (code.value.upper(), "assay")
        retried = [each for each in found.details if each.Is(error_details_pb2.RetryInfo.DESCRIPTOR)]
        assert bool(retried) is (PROBLEMS[code].retry_after_s is not None)


def test_who_asks_says_so_by_password_or_token(guarded: Served) -> None:
    read = {"queue_name": "orders", "offset": 0, "partition": 0}
    for authorization in (basic("ann:secret"), "Bearer assay_read"):
        assert _refusal(guarded.fluxmq(authorization).Read, **read).code() is grpc.StatusCode.OUT_OF_RANGE
    for wrong in ("", basic("ann:wrong"), "Bearer x", "Ann"):
        error = _refusal(guarded.fluxmq(wrong).Read, **read)
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert _details(error).details[0].type_url.endswith("google.rpc.ErrorInfo")


def test_a_token_may_no_more_than_its_scope(guarded: Served) -> None:
    asked = {
        "read": ("GetConsumerGroup", {"queue_name": "orders", "group_id": "none"}, grpc.StatusCode.NOT_FOUND),
        "write": ("AppendBatch", {"queue_name": "orders"}, grpc.StatusCode.INVALID_ARGUMENT),
        "admin": ("GetQueue", {"name": "nowhere"}, grpc.StatusCode.NOT_FOUND),
    }
    for holder in asked:
        flux = guarded.fluxmq(f"Bearer assay_{holder}", 1)
        for scope, (method, fields, otherwise) in asked.items():
            expected = otherwise if scope == holder else grpc.StatusCode.PERMISSION_DENIED
            assert _refusal(getattr(flux, method), **fields).code() is expected, (holder, scope)


def test_beyond_loopback_nobody_without_a_name_writes_or_administers(served: Served) -> None:
    flux = served.fluxmq(listener=1)
    assert _refusal(flux.Append, queue_name="q", value=b"x").code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_tenant_has_queues_of_its_own(guarded: Served) -> None:
    tom = guarded.fluxmq(basic("tom:hidden"))
    appended = tom.Append(queue_name="orders", value=b"mine")
    assert appended.message_id == "orders:0:0"
    assert tom.Consume(queue_name="orders", group_id="g").messages[0].value == b"mine"
    assert _refusal(tom.ListQueues).code() is grpc.StatusCode.PERMISSION_DENIED


def test_anybody_asks_whether_it_is_there(guarded: Served) -> None:
    channel = guarded.channel()
    health = health_pb2_grpc.HealthStub(channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    assert health.Check(health_pb2.HealthCheckRequest(), timeout=60).status == serving
    named = health_pb2.HealthCheckRequest(service="fluxmq.queue.v1.QueueService")
    assert health.Check(named, timeout=60).status == serving
    with pytest.raises(grpc.RpcError) as refused:
        health.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=60)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as refused:
        next(health.Watch(named, timeout=60))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    watch = health.Watch(named, timeout=60, metadata=(("authorization", "Bearer assay_read"),))
    assert next(watch).status == serving
    watch.cancel()


def test_reflection_tells_who_may_read_what_there_is(guarded: Served) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(guarded.channel())
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="fluxmq.queue.v1.Message"),
    ]
    with pytest.raises(grpc.RpcError) as refused:
        next(stub.ServerReflectionInfo(iter(asked), timeout=60))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    told_ = list(stub.ServerReflectionInfo(iter(asked), timeout=60, metadata=(("authorization", "Bearer assay_read"),)))
    names = {each.name for each in told_[0].list_services_response.service}
    assert {"fluxmq.queue.v1.QueueService", "grpc.health.v1.Health"} < names
    assert told_[1].file_descriptor_response.file_descriptor_proto


@pytest.fixture(scope="module")
def tight() -> object:
    """Small limits."""
    http = HttpConfig(max_requests=1, requests_per_s=0.01, request_burst=8, max_batch=2)
    with serve(http=http, max_message_bytes=2_000) as broker:
        made = Served(broker)
        yield made
        made.close()


def test_limits(tight: Served) -> None:
    """In this order: the last takes what is left of the rate."""
    flux = tight.fluxmq()
    flux.CreateQueue(name="tight")
    assert _refusal(flux.Append, queue_name="tight", value=bytes(3_000)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    many = _refusal(flux.AppendBatch, queue_name="tight", messages=[{"value": b"x"}] * 3)
    assert many.code() is grpc.StatusCode.INVALID_ARGUMENT
    # A message that is compressed may be of any size.
    bomb = Service(tight.channel(0, ("grpc.default_compression_algorithm", 2)), "fluxmq.queue.v1.QueueService")
    assert _refusal(bomb.Append, queue_name="tight", value=bytes(1_000_000)).code() is grpc.StatusCode.UNIMPLEMENTED
    # One that waits leaves room to the others.
    got: list[object] = []
    wait = threading.Thread(
        target=lambda: got.append(flux.Consume(queue_name="tight", group_id="g", wait_time={"seconds": 20}))
    )
    wait.start()
    while not when_there_is_room(flux.ListConsumerGroups, queue_name="tight").groups:
        pass
    when_there_is_room(flux.Append, queue_name="tight", value=b"x")
    wait.join(20)
    assert got[0].messages[0].value == b"x"  # type: ignore[attr-defined]
    codes = [_code(flux) for _ in range(8)]
    assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes


def _code(flux: Service) -> grpc.StatusCode | None:
    try:
        flux.ListConsumerGroups(queue_name="tight")
    except grpc.RpcError as error:
        return error.code()  # type: ignore[no-any-return]
    return None


def test_certificates_protect_and_name(tmp_path: Path) -> None:
    authority = trustme.CA()
    own = authority.issue_cert("localhost", "127.0.0.1")
    paths = {name: tmp_path / f"{name}.pem" for name in ("cert", "key", "ca")}
    own.private_key_pem.write_to_path(paths["key"])
    own.cert_chain_pems[0].write_to_path(paths["cert"])
    authority.cert_pem.write_to_path(paths["ca"])
    tls = TlsConfig(
        certificate=str(paths["cert"]),
        key=str(paths["key"]),
        client_certificate_authority=str(paths["ca"]),
        require_client_certificate=True,
        use_certificate_name_as_username=True,
    )
    listeners = (ListenerConfig(port=0), ListenerConfig(port=0, protocols=GRPC, tls=tls))
    client = authority.issue_cert("ann@example.org", common_name="ann")
    with Broker(BrokerConfig(listeners=listeners)) as broker:
        target = broker.addresses[1]
        assert target.scheme == "grpcs"
        credentials = grpc.ssl_channel_credentials(
            authority.cert_pem.bytes(), client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()
        )
        with grpc.secure_channel(f"localhost:{target.port}", credentials) as channel:
            flux = Service(channel, "fluxmq.queue.v1.QueueService")
            flux.CreateQueue(name="q")
            flux.Append(queue_name="q", value=b"x")
            taken = flux.Consume(queue_name="q", group_id="g", consumer_id="c").messages
            assert taken[0].value == b"x"
        with grpc.secure_channel(
            f"localhost:{target.port}", grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        ) as channel:
            flux = Service(channel, "fluxmq.queue.v1.QueueService")
            assert _refusal(flux.GetQueue, name="q", timeout=60.0).code() is grpc.StatusCode.UNAVAILABLE
    assert ssl.OPENSSL_VERSION


def test_what_cannot_be_configured_is_told() -> None:
    tls = TlsConfig(certificate="c", key="k", minimum_version=TlsVersion.V1_3)
    for listener, text in (
        (ListenerConfig(protocols=(ListenerProtocol.GRPC, ListenerProtocol.MQTT)), "port of its own"),
        (ListenerConfig(protocols=GRPC, tls=tls), "TLS 1.2"),
    ):
        with pytest.raises(ConfigError, match=text):
            check_config(BrokerConfig(listeners=(listener,)))


def test_an_address_in_use_is_told(served: Served) -> None:
    port = int(served.targets[0].rpartition(":")[2])
    with (
        pytest.raises(OSError, match="in use"),
        Broker(BrokerConfig(listeners=(ListenerConfig(port=port, protocols=GRPC),))),
    ):
        pass


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    """As somebody sees it who has not installed it."""
    (tmp_path / "broker.yaml").write_text("listeners: [{port: 0, protocols: [grpc]}]\n")
    hidden = "import sys; sys.modules['grpc'] = None; sys.argv[1:] = ['serve', '--config', sys.argv[1]]; "
    hidden += "from assay.cli import main; main()"
    finished = subprocess.run(
        [sys.executable, "-c", hidden, str(tmp_path / "broker.yaml")], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 2, finished.stderr
    assert finished.stderr.count("\n") == 1, finished.stderr
    assert "'assay-mq[grpc]'" in finished.stderr


def test_the_page_tells_every_status() -> None:
    """docs/grpc.md lists what each status stands for."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "grpc.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `") and line.count("|") == 3]
    listed = {(status.strip(" `"), code.strip(" `")) for status, codes in rows for code in codes.split(",")}
    known = {(status_of(code).name, code.value.upper()) for code in PROBLEMS}
    statuses = {status for status, _ in known}
    rows_of_codes = {(status, code) for status, code in listed if status in statuses}
    assert rows_of_codes <= known, rows_of_codes - known
    assert {status for status, _ in rows_of_codes} == statuses
