"""``assay produce``: messages from arguments, files or standard input, in batches, as fast as they are confirmed."""

from __future__ import annotations

import base64
import select
import sys
import time
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from assay.reference_broker.clients.http_client import HttpQueues, path
from assay.reference_broker.clients.shared import RefusedError, UnreachableError
from assay.reference_broker.commands.ends import FailedError, StoppedError, UsageError, say
from assay.reference_broker.commands.shown import Output
from assay.reference_broker.commands.verbs import Parameter, Place, Values, Verb, option, queue_names
from assay.reference_broker.trace.terminal import WholeConsole

MAX_LINE_BYTES: Final = 3 * 1024 * 1024
"""Of a payload: base64 makes four bytes of three, and a request has 4 MiB unless the broker is configured otherwise."""
MAX_BATCH_BYTES: Final = 1024 * 1024
"""Of a request's messages as JSON, unless a single one is larger."""
_PORTION: Final = 65_536
_MOST_TOLD: Final = 5
"""Refusals that are told one by one."""


class Lines:
    """Lines of a stream, as many together as are there."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[list[bytes]]:
        """Those of a portion of the stream at once. Raises :class:`UsageError` for one that is too long."""
        rest = b""
        count = 0
        while portion := self._stream.read1(_PORTION):
            *lines, rest = (rest + portion).split(b"\n")
            if len(lines[0] if lines else rest) > MAX_LINE_BYTES:
                raise UsageError(f"line {count + 1} has more than {MAX_LINE_BYTES} bytes")
            count += len(lines)
            if lines:
                yield lines
        if rest:
            yield [rest]

    @property
    def is_waiting(self) -> bool:
        """Whether there is more at once."""
        try:
            poll = select.poll()
            poll.register(self._stream, select.POLLIN)
            return bool(poll.poll(0))
        except (OSError, ValueError, TypeError):
            return False


def _sources(values: Values) -> Iterator[tuple[list[bytes], bool]]:
    """Payloads, or JSON lines, as they come, and whether more is there at once."""
    if values["messages"] and values["messages"] != ["-"]:
        yield [each.encode() for each in values["messages"]], False
        return
    for name in values["file"] or ["-"]:
        if values["whole"]:
            content = sys.stdin.buffer.read(MAX_LINE_BYTES + 1) if name == "-" else _whole(Path(name))
            if len(content) > MAX_LINE_BYTES:
                raise UsageError(f"{name} has more than {MAX_LINE_BYTES} bytes")
            yield [content], True
        elif name == "-":
            lines = Lines(cast(BufferedIOBase, sys.stdin.buffer))
            for found in lines:
                yield found, lines.is_waiting
        else:
            with Path(name).open("rb") as stream:
                for found in Lines(stream):
                    yield found, True


def _whole(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(MAX_LINE_BYTES + 1)


def _headers(pairs: Sequence[str]) -> dict[str, str]:
    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is no header like source=web")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


_OPTIONS: Final = ("key", "routing_key", "priority", "delay", "deliver_at", "ttl", "content_type", "partition")
_READ_BACK: Final = frozenset((*_OPTIONS, "payload", "payload_base64", "headers")) - {"partition"}
"""Members of a JSON line that are published; consume writes others, too, and the partition where a message was."""


def _message(content: bytes, common: dict[str, Any], *, is_json: bool) -> bytes:
    if is_json:
        try:
            found = msgspec.json.decode(content, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise UsageError(f"{content[:80]!r} is no message as JSON: {error}") from error
        headers = found.get("headers") or {}
        if not isinstance(headers, dict):
            raise UsageError(f"{content[:80]!r}: headers are names and values")
        headers = common.get("headers", {}) | headers
        return msgspec.json.encode(
            {**common, **{name: value for name, value in found.items() if name in _READ_BACK}, "headers": headers}
        )
    try:
        return msgspec.json.encode({**common, "payload": content.decode()})
    except UnicodeDecodeError:
        return msgspec.json.encode({**common, "payload_base64": base64.b64encode(content).decode()})


class _Publishing:
    """What became of messages so far."""

    def __init__(self, client: HttpQueues, values: Values, bar: Progress) -> None:
        self._client = client
        self._where = path("/queues/{queue}/messages", queue=values["queue"])
        self._output: Output = values["output"]
        self._rate: float = values["rate"]
        self._most: int = min(values["batch"], max(1, int(self._rate))) if self._rate else values["batch"]
        self._due = time.monotonic()
        self._bar = bar
        self._task = bar.add_task("", total=None)
        self._batch: list[msgspec.Raw] = []
        self._bytes = 0
        self.last: dict[str, Any] = {}
        self.published = self.refused = 0

    def add(self, message: bytes) -> None:
        if self._batch and (len(self._batch) >= self._most or self._bytes + len(message) > MAX_BATCH_BYTES):
            self.flush()
        self._batch.append(msgspec.Raw(message))
        self._bytes += len(message)

    def flush(self) -> None:
        """Publish what is collected, when it is its time."""
        batch, self._batch, self._bytes = self._batch, [], 0
        if not batch:
            return
        if self._rate:
            now = time.monotonic()
            time.sleep(max(0.0, self._due - now))
            self._due = max(self._due, now) + len(batch) / self._rate
        try:
            results = self._client.ask("POST", self._where, body={"messages": batch})["results"]
        except UnreachableError as error:
            message = f"{error.text} (of {len(batch)} messages it is not known whether they are published)"
            raise UnreachableError(message) from error
        for each in results:
            self._take(each)
        sys.stdout.buffer.flush()
        self._bar.update(self._task, description=f"{self.published} published, {self.refused} refused")

    def _take(self, result: dict[str, Any]) -> None:
        if self._output is Output.JSON:
            sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
        if "error" not in result:
            self.published += 1
            self.last = result
            return
        self.refused += 1
        if self.refused <= _MOST_TOLD:
            say(f"message {self.published + self.refused}: {result['error']['detail']} ({result['error']['code']})")

    def summary(self) -> str:
        place = self.last.get("message_id") or self.last.get("delay_id")
        if self.published == 1 and not self.refused and place:
            return f"published {place}" if "message_id" in self.last else f"delayed as {place}"
        return f"published {self.published} messages" + (f", {self.refused} refused" if self.refused else "")


def run(client: HttpQueues, values: Values) -> None:
    """Raises :class:`FailedError` where some were refused, :class:`StoppedError` where it was interrupted."""
    if values["batch"] < 1 or values["rate"] < 0:
        raise UsageError("--batch is 1 or more, --rate is not negative")
    common = {name: values[name] for name in _OPTIONS if values[name] is not None}
    if values["header"]:
        common["headers"] = _headers(values["header"])
    errors = WholeConsole(stderr=True)
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        publishing = _Publishing(client, values, bar)
        try:
            for contents, more in _sources(values):
                for content in contents:
                    publishing.add(_message(content, common, is_json=values["json_lines"]))
                if not more:
                    publishing.flush()
            publishing.flush()
        except KeyboardInterrupt:
            say(f"stopped; {publishing.summary()}")
            raise StoppedError from None
        except (RefusedError, UsageError, BrokenPipeError):
            say(publishing.summary())
            raise
    if values["output"] is not Output.JSON:
        print(publishing.summary())
    if publishing.refused:
        raise FailedError


PRODUCE: Final = Verb(
    name="produce",
    about="Publish messages to a queue: those that are named, else the lines of files or of standard input."
    " It ends once all are as durable as their queue promises."
    "\n\nExamples: assay produce orders 'first' 'second' --key customer-7"
    "\n\ntail -F access.log | assay produce lines"
    "\n\nassay consume orders -o json | assay produce copies --json-lines",
    parameters=(
        Parameter("queue", "Where to.", complete=queue_names),
        Parameter("messages", "Payloads; none, or -: lines of standard input.", Place.OWN, (), list[str], []),
        option("file", "File with a message a line; - is standard input. Repeatable.", list[str], [], "-f"),
        option("whole", "A file is one message.", bool, False),
        option(
            "json_lines",
            "A line is a message as JSON: payload or payload_base64, key, headers and the other options.",
            bool,
            False,
        ),
        option("key", "Messages of one key keep their order.", str, None, "-k"),
        option("header", "NAME=VALUE. Repeatable.", list[str], [], "-H"),
        option("priority", "critical, high, normal, low or background."),
        option("delay", "Deliver no earlier than so long from now: 30s, 1h30m.", str, None, "-d"),
        option("deliver_at", "Deliver no earlier than then: RFC 3339."),
        option("ttl", "Give it up after so long: 24h."),
        option("routing_key", "For consumers with a pattern."),
        option("content_type", "What payloads are."),
        option("partition", "In place of what the key chooses.", int, None, "-p"),
        option("rate", "At most so many a second.", float, 0.0),
        option("batch", "At most so many in one request.", int, 500),
    ),
    run=run,
)
