"""Every refusal of AMQP 0.9.1 names a rule of the registry, which is in the trace then."""

from __future__ import annotations

import ast
import importlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.conformance.registry import load_statements
from assay.reference_broker.amqp091 import queue_settings
from assay.reference_broker.amqp091.refusals import _REPLIES
from assay.reference_broker.amqp091.wire.replies import Reply
from assay.reference_broker.config import BrokerConfig, QueuesConfig
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import QueueErrorCode
from assay.reference_broker.trace.schema import TraceKind
from tests.support.amqp_client import NOW, AmqpClient

FOLDER = Path(__file__).resolve().parents[2] / "reference_broker" / "amqp091"
NO_FAULT = {"CONNECTION_FORCED", "INTERNAL_ERROR", "RESOURCE_ERROR"}
"""Codes that may come without a rule: the client broke none."""
MAKERS = {"AmqpError", "bad_syntax", "not_found", "access_refused", "precondition_failed", "find_queue"}
"""Functions that make refusals; the rule is by keyword, or the last argument that is one."""


def _calls() -> Iterator[tuple[str, Path, ast.Call]]:
    for path in sorted(FOLDER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                if name in MAKERS:
                    yield name, path, node


def _constants(path: Path, node: ast.expr) -> Iterator[str]:
    """Texts that an expression may be, constants of the module looked up."""
    module = importlib.import_module("assay.reference_broker." + ".".join(path.with_suffix("").parts[-_depth(path) :]))
    if isinstance(node, ast.JoinedStr):
        # Of exchanges and of queues alike.
        text = ast.unparse(node)[2:-1]
        yield from (text.replace("{kind}", kind) for kind in ("exchange", "queue"))
        return
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value
        elif isinstance(each, ast.Name):
            value = getattr(module, each.id, None)
            if isinstance(value, str):
                yield value


def _depth(path: Path) -> int:
    return len(path.relative_to(FOLDER.parent).parts)


def test_every_refusal_names_a_rule_of_the_registry() -> None:
    known = load_statements("amqp091")
    named = set()
    for name, path, call in _calls():
        where = f"{path.name}:{call.lineno}"
        keyword = next((each.value for each in call.keywords if each.arg == "rule"), None)
        if name == "AmqpError" and keyword is None:
            code = ast.unparse(call.args[0]).rpartition(".")[2]
            assert code in NO_FAULT, f"{where}: {ast.unparse(call)} names no rule"
            continue
        if keyword is None:
            keyword = call.args[-1]
        for text in _constants(path, keyword):
            if " " in text or not text or "{" in text:
                continue
            if "." in text:
                named.add(text)
                assert text in known, f"{where}: {text} is no rule of the registry"
    assert len(named) > 30, named


def test_the_tables_of_refusals_name_rules_of_the_registry() -> None:
    known = load_statements("amqp091")
    for code, (reply, rule) in _REPLIES.items():
        assert isinstance(code, QueueErrorCode)
        assert isinstance(reply, Reply)
        assert rule in known, code
    assert {*queue_settings._RULES.values(), queue_settings._OTHERS, queue_settings._DEAD_LETTERS} <= known.keys()


@pytest.mark.parametrize(
    ("method", "values", "rule"),
    [
        ("basic.ack", (7, False), "delivery-tag.channel-local"),
        ("queue.delete", ("", False, False, False), "queue.bind.queue.queue-known"),
        ("basic.qos", (1, 0, False), "rmq.qos.prefetch-size"),
        ("tx.commit", (), "tx.commit.transacted"),
        ("exchange.declare", ("e", "odd", False, False, False, False, False, ()), "exchange.declare.type.support"),
    ],
)
def test_the_trace_names_the_rule(method: str, values: tuple[object, ...], rule: str) -> None:
    traced: list[str] = []

    def trace(kind: TraceKind, fields: dict[str, str | int]) -> None:
        if kind is TraceKind.PROTOCOL_ERROR:
            traced.append(str(fields["detail"]))

    node = BrokerNode(BrokerConfig(queues=QueuesConfig()), None, random.Random(1), NOW, trace)
    client = AmqpClient(node)
    client.open()
    said = client.say(1, method, *values)
    assert said[-1].name in ("channel.close", "connection.close")
    assert [text for text in traced if text.endswith(f"({rule})")], traced
