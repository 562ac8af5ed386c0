"""The id of a delayed message, and the time in its record: what is neither is refused, or is no such message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.queues.delays.delayed_message import (
    delay_id_of,
    due_of,
    options_of,
    own_headers,
    parse_delay_id,
    with_due,
)
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.store import Headers, LogRecord
from assay.reference_broker.queues.messages.publish_options import Priority, PublishOptions
from assay.reference_broker.routing.message import Message


def _record(headers: Headers) -> LogRecord:
    return LogRecord(0, 0, None, b"payload", headers)


@given(
    st.integers(0, 2**53),
    st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=5)), max_size=3),
    st.builds(
        PublishOptions,
        partition=st.none() | st.integers(0, 2**31 - 1),
        priority=st.none() | st.sampled_from(Priority),
    ),
)
def test_the_due_time_and_the_options_are_read_as_written(
    due_ms: int, headers: list[tuple[bytes, bytes]], options: PublishOptions
) -> None:
    written = with_due(tuple(headers), due_ms, options)
    assert due_of(_record(written)) == due_ms
    assert own_headers(written) == tuple(headers)
    # Properties that have the names of options are an application's own, unless they were read as such.
    message = Message(topic="t", payload=b"", user_properties=(("priority", "low"), ("partition", "9")))
    assert (options_of(written, message) or PublishOptions()) == options


@pytest.mark.parametrize(
    ("properties", "options"),
    [
        ((("priority", "High"),), PublishOptions(priority=Priority.HIGH)),
        ((("partition", "2"), ("priority", "4")), PublishOptions(partition=2, priority=Priority.BACKGROUND)),
        ((("delay", "5s"), ("partition-key", "k")), None),
    ],
)
def test_a_record_of_before_has_its_options_among_the_properties(
    properties: tuple[tuple[str, str], ...], options: PublishOptions | None
) -> None:
    headers = (
        (b"_due", b"5"),
        (b"_topic", b"$queue/q"),
        *((name.encode(), text.encode()) for name, text in properties),
    )
    assert due_of(_record(headers)) == 5
    assert own_headers(headers) == headers[1:]
    assert options_of(headers, Message(topic="$queue/q", payload=b"", user_properties=properties)) == options


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
