"""What the suites do about gRPC where its library is missing, and what their own interface files say."""

from __future__ import annotations

import importlib

import pytest

from assay.conformance import engine
from assay.conformance.case import load_cases
from assay.conformance.engine import missing_capability
from assay.conformance.targets import load_target
from assay.conformance.targets.model import Endpoint
from assay.conformance.wire import grpc as module
from assay.conformance.wire.grpc import ADVICE, FLUXMQ, interface

probe_module = importlib.import_module("assay.conformance.targets.probe")  # the package has a function of that name
CASE = load_cases()["grpc/health/anybody-may-ask"]


def test_a_case_says_what_to_install_where_the_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "is_installed", lambda: False)
    assert missing_capability(CASE, {"grpc_url": "grpc://127.0.0.1:1"}) == ADVICE
    assert "the target lacks: grpc" in missing_capability(CASE, {})


def test_nobody_is_greeted_by_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "is_installed", lambda: False)
    target = load_target("reference")
    said = {**target.capabilities, "grpc_url": "grpc://127.0.0.1:1", "http_url": "http://127.0.0.1:0"}
    target = type(target)(name="x", capabilities=said)
    assert [version for version, _ in probe_module.greetings(target, Endpoint())] == [4, 5, 91]


def test_a_library_that_is_not_there_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.is_installed()
    monkeypatch.setattr(module, "NEEDED", ("no_such_library.part",))
    assert not module.is_installed()


def test_numbers_of_fields_are_those_of_fluxmq_and_goqueue() -> None:
    append = interface().method(f"{FLUXMQ}/Append")
    assert append.request(queue_name="q", key=b"k", value=b"v").SerializeToString() == b"\n\x01q\x12\x01k\x1a\x01v"
    ack = interface().method("goqueue.v1.AckService/Ack")
    assert ack.request(group_id="g", receipt_handle="r").SerializeToString() == b"\n\x01g\x12\x01r"
    assert interface().method(f"{FLUXMQ}/Tail").streams
    assert not append.streams
