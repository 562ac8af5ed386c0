"""The id of a delayed message, and the time in its record: what is neither is refused, or is no such message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.queues.delays.delayed_message import delay_id_of, due_of, parse_delay_id, with_due
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.store import Headers, LogRecord


def _record(headers: Headers) -> LogRecord:
    return LogRecord(0, 0, None, b"payload", headers)


@given(st.integers(0, 2**53), st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=5)), max_size=3))
def test_the_due_time_is_read_as_written(due_ms: int, headers: list[tuple[bytes, bytes]]) -> None:
    assert due_of(_record(with_due(tuple(headers), due_ms))) == due_ms


@pytest.mark.parametrize(
    "headers",
    [(), ((b"due", b"5"),), ((b"_other", b"5"), (b"_due", b"5")), ((b"_due", b""),), ((b"_due", b"-5"),)],
)
def test_what_does_not_begin_with_a_due_time_is_no_delayed_message(headers: Headers) -> None:
    assert due_of(_record(headers)) is None


@given(st.text(min_size=1, max_size=20), st.integers(0, 10**19 - 1))
def test_an_id_names_its_offset(queue: str, offset: int) -> None:
    assert parse_delay_id(queue, delay_id_of(queue, offset)) == offset


@pytest.mark.parametrize(
    "name", ["q:delay:", ":delay:1", "q:delay:-1", "q:delay:1" + "0" * 19, "q:delay:\u0661", "r:delay:1"]
)
def test_what_is_no_id_of_the_queue_is_refused(name: str) -> None:
    with pytest.raises(QueueError) as refused:
        parse_delay_id("q", name)
    assert refused.value.code is QueueErrorCode.BAD_ADDRESS
