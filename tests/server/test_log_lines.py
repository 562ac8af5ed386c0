"""The log of the broker: neither a client nor a failing disk fills or forges it."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime

import pytest

from assay.reference_broker.server.log_lines import INTERVAL_S, MOST_LINES, MOST_OF_A_KIND, JsonLine, LogLimit, OneLine

log = logging.getLogger("assay.test")


def test_a_flood_of_one_kind_leaves_few_lines_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    limit = LogLimit(log)
    for number in range(MOST_OF_A_KIND + 4):
        limit.tell("disk", f"disk {number}", 100.0 + number / 100)
    limit.tell("connections", "refused", 101.0)
    assert caplog.messages == [*(f"disk {number}" for number in range(MOST_OF_A_KIND)), "refused"]
    limit.tell("disk", "disk again", 100.0 + INTERVAL_S)
    assert caplog.messages[-2:] == ["disk: 4 more lines like the last ones", "disk again"]
    limit.tell("disk", "disk later", 100.0 + 2 * INTERVAL_S)
    assert caplog.messages[-2:] == ["disk again", "disk later"]


def test_kinds_without_end_are_bounded_too(caplog: pytest.LogCaptureFixture) -> None:
    limit = LogLimit(log)
    for number in range(10 * MOST_LINES):
        limit.tell(f"kind {number}", "text", 5.0)
    assert len(caplog.messages) == MOST_LINES
    limit.tell("later", "text", 5.0 + INTERVAL_S)
    assert caplog.messages[MOST_LINES:] == [f"{9 * MOST_LINES} more lines were left out", "text"]


def test_a_line_has_the_level_it_is_given(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "assay.test")
    LogLimit(log).tell("client", "bad packet", 0.0, logging.INFO)
    assert [record.levelno for record in caplog.records] == [logging.INFO]


def test_nobody_forges_a_line() -> None:
    record = logging.LogRecord("assay", logging.INFO, "", 0, "%s", ("a\r\nWARNING forged\x1b[2J\u2028b",), None)
    shown = OneLine("%(levelname)s %(message)s").format(record)
    assert shown == "INFO a\\u000d\\u000aWARNING forged\\u001b[2J\\u2028b"
    record.msg, record.args = "x" * 65_535, ()
    assert len(OneLine("%(message)s").format(record)) < 2_100


def test_json_is_an_object_a_line_whatever_a_client_calls_itself() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        found = sys.exc_info()
    name = 'x"\n2026 ERROR forged' + "y" * 10_000
    record = logging.LogRecord("assay.broker", logging.WARNING, __file__, 1, "client %s", (name,), found)
    line = JsonLine().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert told["message"].startswith('client x"\n2026 ERROR forged')
    assert told["message"].endswith("characters)")
    assert len(line) < 10_000
    assert (told["level"], told["logger"]) == ("warning", "assay.broker")
    assert datetime.fromisoformat(told["time"]).timestamp() == pytest.approx(record.created, abs=0.001)
    assert "ValueError" in told["exception"]
