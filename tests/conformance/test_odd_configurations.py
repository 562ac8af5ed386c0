"""Brokers that are configured in an odd and legal way: no case may fail on them that asks for more than they offer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from assay.conformance.case import load_cases
from assay.conformance.engine import RunOptions
from assay.conformance.run import Run, RunPlan
from assay.conformance.targets import Target, load_target
from assay.reference_broker.trace.conformance import CaseVerdict
from assay.reference_broker.trace.yaml_text import parse_yaml

PASS, UNSUPPORTED = CaseVerdict.PASS, CaseVerdict.UNSUPPORTED


def configured(name: str, settings: dict[str, Any]) -> Target:
    """A shipped target with the reference broker, and other sections in its configuration."""
    target = load_target(name)
    assert target.start is not None
    said = {**parse_yaml(target.start.files["broker.yaml"]), **settings}
    files = {"broker.yaml": msgspec.json.encode(said).decode()}  # JSON is YAML
    hook = msgspec.structs.replace(target.start, files=files)
    return msgspec.structs.replace(target, start=hook, required=())


@pytest.mark.parametrize(
    ("target", "settings", "case_ids", "verdict"),
    [
        (
            "reference",
            {"http": {"max_poll_s": 2.0, "max_batch": 10}},
            (
                "http/consume/a-long-poll-ends-with-the-message",
                "http/consume/a-client-that-went-loses-nothing",
                "http/consume/a-second-wait-is-409",
                "http/publish/a-key-keeps-its-order",
            ),
            PASS,
        ),
        ("reference", {"http": {"max_poll_s": 0}}, ("http/consume/a-long-poll-ends-with-the-message",), UNSUPPORTED),
        ("reference", {"http": {"max_poll_s": 0}}, ("http/consume/who-leaves-gives-back",), PASS),
        (
            "reference-amqp091",
            {"amqp091": {"channel_max": 2}},
            ("amqp091/channel/numbers-end-at-the-maximum", "amqp091/channel/open-is-answered"),
            PASS,
        ),
        (
            "reference-amqp091",
            {"amqp091": {"channel_max": 2}},
            ("amqp091/basic/unknown-tags-are-refused",),
            UNSUPPORTED,
        ),
        (
            "reference",
            {"queues": {"defaults": {"partitions": 1}}},
            (
                "queue/transactions/one-at-a-time",
                "queue/transactions/commits-in-every-queue",
                "queue/idempotence/numbers-count-per-partition",
                "queue/delay/properties-hold",
                "queue/delay/queues-do-not-mix",
                "queue/lifecycle/lost-consumers-have-no-share",
            ),
            PASS,
        ),
        (
            "reference",
            {"mqtt": {"max_packet_bytes": 512}},
            ("mqtt5/flow-control/too-large-only-for-one-subscriber",),
            UNSUPPORTED,
        ),
        ("reference", {"mqtt": {"max_packet_bytes": 512}}, ("mqtt5/subscribe/deep-filters-are-answered",), PASS),
        ("reference", {"mqtt": {"max_session_expiry_s": 0}}, ("mqtt5/will/delay-is-kept",), UNSUPPORTED),
    ],
)
def test_a_case_asks_for_no_more_than_is_offered(
    target: str, settings: dict[str, Any], case_ids: tuple[str, ...], verdict: CaseVerdict
) -> None:
    cases = load_cases()
    with Run(RunPlan(target=configured(target, settings), options=RunOptions())) as run:
        futures = run.submit_all([cases[each] for each in case_ids])
        found = {each: futures[each].result(120).result for each in case_ids}
    assert {each: result.verdict for each, result in found.items()} == dict.fromkeys(case_ids, verdict), found
