"""``assay consume``: messages as a group gets them, or as they are stored, one a line.

What a group gets is settled once it was shown, never before: whatever ends the command, by signals, pipes or a broker
that is gone, what was not shown comes again.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

from assay.reference_broker.clients.http_client import HttpQueues, path
from assay.reference_broker.clients.shared import RefusedError
from assay.reference_broker.commands.ends import StoppedError, UsageError
from assay.reference_broker.commands.messages import Message, write
from assay.reference_broker.commands.verbs import Parameter, Place, Values, Verb, option, queue_names

BATCH: Final = 100
"""Messages of one request, and so unsettled at once."""
_WAIT_S: Final = 1.0
_FOLLOW_WAIT_S: Final = 20.0
_READ_AGAIN_S: Final = 0.5


class Outcome(StrEnum):
    """What becomes of messages that were shown."""

    ACCEPT = "accept"
    FAIL = "fail"
    RELEASE = "release"
    REJECT = "reject"


def run(client: HttpQueues, values: Values) -> None:
    """Raises :class:`StoppedError` where it was interrupted before its end."""
    if values["max"] is not None and values["max"] < 1:
        raise UsageError("--max is 1 or more")
    batches = _consumed(client, values) if values["group"] else _read(client, values)
    try:
        for _ in batches:
            pass
    except KeyboardInterrupt:
        if not values["follow"] or values["max"] is not None:
            raise StoppedError from None
    finally:
        batches.close()


def _consumed(client: HttpQueues, values: Values) -> Any:
    """As a member of a group; a batch is shown, settled, and then yielded."""
    queue, left = values["queue"], values["max"]
    consumer = {"group": values["group"], "consumer": values["consumer"] or f"assay-{os.getpid()}"}
    consumer |= {"pattern": values["pattern"]} if values["pattern"] else {}
    wait_s = values["wait"]
    if wait_s is None:
        wait_s = _FOLLOW_WAIT_S if values["follow"] else _WAIT_S
    where = path("/queues/{queue}/consume", queue=queue)
    held: list[Message] = []
    try:
        while left is None or left:
            most = BATCH if left is None else min(BATCH, left)
            body = {**consumer, "max_messages": most, "wait_s": wait_s, "cursor": values["start"]}
            taken = client.ask("POST", where, body=body, wait_s=wait_s)["messages"]
            if not taken and not values["follow"]:
                return
            held += taken
            _show(taken, values)
            if values["settle"] is not Outcome.RELEASE:
                _settle(client, queue, values["settle"], held)
            left = None if left is None else left - len(taken)
            yield taken
    finally:
        _end(client, queue, consumer, held)


def _settle(client: HttpQueues, queue: str, outcome: Outcome, held: list[Message]) -> None:
    """All that is held, a batch at a time."""
    while held:
        receipts = [each["receipt"] for each in held[:BATCH]]
        body = {"outcome": outcome, "receipts": receipts}
        client.ask("POST", path("/queues/{queue}/settle", queue=queue), body=body)
        del held[:BATCH]


def _end(client: HttpQueues, queue: str, consumer: dict[str, str], held: list[Message]) -> None:
    """What is held still is given back untried, and what else came is ready again; its partitions go to others."""
    with suppress(RefusedError, KeyboardInterrupt):
        _settle(client, queue, Outcome.RELEASE, held)
    with suppress(RefusedError, KeyboardInterrupt):
        client.ask("POST", path("/queues/{queue}/leave", queue=queue), body=consumer)


def claim(client: HttpQueues, values: Values) -> None:
    """Take over, show and settle what others of a group have had for long."""
    queue = values["queue"]
    held: list[Message] = []
    consumer = {"group": values["group"], "consumer": f"assay-{os.getpid()}"}
    wanted = {name: values[name] for name in ("min_idle_s", "limit", "partition", "offset")}
    try:
        where = path("/queues/{queue}/claim", queue=queue)
        held = client.ask("POST", where, body={**consumer, **wanted})["messages"]
        _show(held, {**values, "payloads": False})
        _settle(client, queue, values["settle"], held)
    finally:
        _end(client, queue, consumer, held)


def _show(messages: list[Message], values: Values) -> None:
    write(messages, values["output"], payloads=values["payloads"])


def _read(client: HttpQueues, values: Values) -> Any:
    """As they are stored, partition by partition, for no group."""
    queue, start, left = values["queue"], values["start"] or "earliest", values["max"]
    partition = values["partition"]
    if partition is None:
        count = client.ask("GET", path("/queues/{queue}/stats", queue=queue))["partitions"]
        places = dict.fromkeys(range(count), start)
    else:
        places = {partition: start}
    while True:
        shown = 0
        for index, place in places.items():
            while left is None or left:
                where = path("/queues/{queue}/partitions/{partition}/messages", queue=queue, partition=index)
                most = BATCH if left is None else min(BATCH, left)
                found = client.ask("GET", where, query={"from": place, "limit": most})
                place = places[index] = str(found["next_offset"])
                if not found["messages"]:
                    break
                _show(found["messages"], values)
                shown += len(found["messages"])
                left = None if left is None else left - len(found["messages"])
                yield found["messages"]
        if left == 0 or not values["follow"]:
            return
        if not shown:
            time.sleep(_READ_AGAIN_S)


def settle_parameter(default: Outcome) -> Parameter:
    about = "What becomes of what was shown; release: it is ready again when the command ends."
    return option("settle", about, Outcome, default)


CONSUME: Final = Verb(
    name="consume",
    about="Show messages of a queue. With a group they are consumed: each is settled once it was shown. Without,"
    " they are read as they are stored, and stay."
    "\n\nExamples: assay consume orders"
    "\n\nassay consume orders --group billing --max 10"
    "\n\nassay consume orders --group billing --follow -o json",
    parameters=(
        Parameter("queue", "Where from; dlq/NAME are the dead letters of a queue.", complete=queue_names),
        option("group", "Consume as a member of this group.", str, None, "-g"),
        option("follow", "Go on as more come, until Ctrl-C.", bool, False, "-f"),
        option("max", "End after so many.", int, None, "-n"),
        Parameter(
            "start",
            "Where to begin, with a group where a new one begins: earliest, latest, an offset, or a time in RFC 3339.",
            Place.OWN,
            ("--from",),
            str,
            None,
        ),
        option("partition", "Without a group: only of this one.", int, None, "-p"),
        settle_parameter(Outcome.ACCEPT),
        option("consumer", "Its name within the group."),
        option("pattern", "With a group: only routing keys that this filter matches."),
        option(
            "wait",
            "Seconds that a request waits for messages: 1, and the command ends with none; 20 if it follows.",
            float,
        ),
        option("payloads", "Payloads alone, as they are, one a line.", bool, False),
    ),
    run=run,
)
