"""A client, or a failing disk, cannot fill the broker's log."""

from __future__ import annotations

import logging

import pytest

from reference_broker.server.log_limit import INTERVAL_S, MOST_LINES, LogLimit

log = logging.getLogger("assay.test")


def test_each_kind_is_written_once_in_an_interval_and_the_rest_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    limit = LogLimit(log)
    for number in range(5):
        limit.warn("disk", f"disk {number}", 100.0 + number)
    limit.warn("connections", "refused", 101.0)
    assert caplog.messages == ["disk 0", "refused"]
    limit.warn("disk", "disk again", 100.0 + INTERVAL_S)
    assert caplog.messages[2:] == ["disk: 4 more lines like the last one", "disk again"]


def test_kinds_without_end_are_bounded_too(caplog: pytest.LogCaptureFixture) -> None:
    limit = LogLimit(log)
    for number in range(10 * MOST_LINES):
        limit.warn(f"kind {number}", "text", 5.0)
    assert len(caplog.messages) == MOST_LINES
    limit.warn("later", "text", 5.0 + INTERVAL_S)
    assert caplog.messages[MOST_LINES:] == [f"{9 * MOST_LINES} more warnings were left out", "text"]
