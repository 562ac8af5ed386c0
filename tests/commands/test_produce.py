"""``assay produce``."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from assay.reference_broker.clients.http_client import HttpQueues
from assay.reference_broker.clients.shared import UnreachableError
from assay.reference_broker.commands import produce
from assay.reference_broker.commands.produce import MAX_BATCH_BYTES, MAX_LINE_BYTES, Lines
from tests.commands.conftest import Assay


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each request to publish had, as they are sent."""
    counts: list[int] = []
    ask = HttpQueues.ask

    def counted(self: HttpQueues, method: str, where: str, **options: Any) -> Any:
        if where.endswith("/messages") and method == "POST":
            counts.append(len(options["body"]["messages"]))
            assert len(msgspec.json.encode(options["body"])) <= MAX_BATCH_BYTES + MAX_LINE_BYTES * 4 // 3 + 100
        return ask(self, method, where, **options)

    monkeypatch.setattr(HttpQueues, "ask", counted)
    return counts


def stored(assay: Assay, queue: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in assay("consume", queue, "-o", "json").splitlines()]


def test_everything_that_a_message_may_have(assay: Assay) -> None:
    assay("queue", "create", "one", "-p", "2")
    options = ("-k", "k", "-H", "a=b=c", "-H", "d=", "--priority", "high", "--ttl", "1h", "--routing-key", "eu/1")
    said = assay("produce", "one", "payload", *options, "--content-type", "text/plain", "-p", "1")
    assert said == "published one:1:0\n"
    (message,) = stored(assay, "one")
    assert message["headers"] == {"a": "b=c", "d": ""}
    assert (message["key"], message["priority"], message["routing_key"]) == ("k", 1, "eu/1")
    assert (message["content_type"], message["partition"]) == ("text/plain", 1)
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    result = msgspec.json.decode(assay("produce", "one", "later", "--deliver-at", tomorrow, "-o", "json"))
    assert result.pop("delay_id").startswith("one:delay:")
    assert not result
    assert "is no header" in assay.fails(2, "produce", "one", "x", "-H", "nothing")


def test_ten_thousand_lines_are_published_in_batches_and_never_held_at_once(assay: Assay, requests: list[int]) -> None:
    assay("queue", "create", "many", "-p", "1")

    class Endless(io.BytesIO):
        """Tells how far ahead of what is published it was read."""

        ahead = read = 0

        def read1(self, size: int | None = -1, /) -> bytes:
            part = super().read1(size)
            self.read += part.count(b"\n")
            self.ahead = max(self.ahead, self.read - sum(requests))
            return part

    text = b"".join(b"line %d\n" % number for number in range(10_000))
    stream = Endless(text)
    lines = Lines(stream)
    with HttpQueues(str(assay.environment["ASSAY_SERVER"])) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(produce, "_sources", lambda _: ((found, True) for found in lines))
        run = produce.PRODUCE.run
        assert run is not None
        defaults = {each.name: each.default for each in produce.PRODUCE.parameters}
        run(client, {**defaults, "queue": "many", "output": "table"})
    assert requests == [500] * 20
    assert stream.ahead < 65_536 / len(b"line 1000\n") * 1.3 + 500 < 10_000
    assert assay.json("queue", "stats", "many")["depth"] == 10_000


def test_lines_come_from_files_and_a_pipe_and_whole_files_are_messages(assay: Assay, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"first\n\xff\nlast")
    assay("queue", "create", "lines", "-p", "1")
    assert assay("produce", "lines", "-f", str(file)) == "published 3 messages\n"
    assert assay("produce", "lines", text="piped\n\nthe end\n") == "published 3 messages\n"
    assert assay("produce", "lines", "-f", str(file), "--whole") == "published lines:0:6\n"
    assert assay("produce", "lines", "--whole", text="all\nof it\n") == "published lines:0:7\n"
    found = stored(assay, "lines")
    assert [each.get("payload") for each in found] == [
        "first", None, "last", "piped", "", "the end", None, "all\nof it\n",
    ]  # fmt: skip
    assert found[1]["payload_base64"] == "/w=="
    assert "No such file" in assay.fails(2, "produce", "lines", "-f", str(tmp_path / "none")).splitlines()[-1]


def test_what_consume_writes_produce_reads_back(assay: Assay) -> None:
    for name in ("from", "to"):
        assay("queue", "create", name, "-p", "1")
    assay("produce", "from", "x", "-k", "k", "-H", "a=b", "--priority", "low")
    assay("produce", "from", text=b"\xfe\n")
    lines = assay("consume", "from", "-o", "json")
    assert assay("produce", "to", "--json-lines", "-H", "c=d", text=lines) == "published 2 messages\n"
    text, raw = stored(assay, "to")
    assert (text["payload"], text["key"], text["headers"], text["priority"]) == ("x", "k", {"a": "b", "c": "d"}, 3)
    assert raw["payload_base64"] == "/g=="
    for wrong, said in (("[]", "is no message as JSON"), ('{"payload": "x", "headers": [1]}', "headers are names")):
        result = assay.run("produce", "to", "--json-lines", text=wrong)
        assert result.exit_code == 2
        assert said in result.stderr


def test_refused_messages_are_told_within_bounds_and_end_with_a_status(assay: Assay) -> None:
    assay("queue", "create", "small", "-p", "1", "--set", "max_depth=3")
    result = assay.run("produce", "small", text="\n".join(map(str, range(20))))
    assert result.exit_code == 1
    assert result.stdout == "published 3 messages, 17 refused\n"
    assert result.stderr.count("(full)\n") == 5
    assert result.stderr.startswith("message 4: ")
    result = assay.run("produce", "none/such", "x", "--priority", "odd")
    assert result.exit_code == 1
    assert "(bad_option)" in result.stderr


def test_a_line_is_bounded(assay: Assay) -> None:
    assay("queue", "create", "long", "-p", "1")
    result = assay.run("produce", "long", text=b"short\n" + b"x" * (MAX_LINE_BYTES + 1) + b"\n")
    assert result.exit_code == 2
    assert f"line 2 has more than {MAX_LINE_BYTES} bytes" in result.stderr


def test_a_rate_is_kept(assay: Assay, requests: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(produce.time, "sleep", sleep)
    monkeypatch.setattr(produce.time, "monotonic", lambda: now)
    assay("queue", "create", "slow", "-p", "1")
    assay("produce", "slow", "--rate", "2", *map(str, range(7)))
    assert requests == [2, 2, 2, 1]
    assert now == 3.0
    assert "--rate" in assay.fails(2, "produce", "slow", "x", "--rate", "-1")


def test_of_what_was_under_way_when_the_broker_went_it_is_said_that_nobody_knows(
    assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise UnreachableError("no broker answers at x")

    monkeypatch.setattr(HttpQueues, "ask", gone)
    result = assay.run("produce", "q", "a", "b")
    assert result.exit_code == 3
    assert "of 2 messages it is not known whether they are published" in result.stderr


def test_an_interrupt_says_how_far_it_came(assay: Assay, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = HttpQueues.ask
    left = [1]

    def interrupted(self: HttpQueues, *arguments: Any, **options: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return ask(self, *arguments, **options)

    assay("queue", "create", "stopped", "-p", "1")
    monkeypatch.setattr(HttpQueues, "ask", interrupted)
    result = assay.run("produce", "stopped", "a", "b", "c", "--batch", "2")
    assert result.exit_code == 6
    assert result.stderr == "stopped; published 2 messages\n"
