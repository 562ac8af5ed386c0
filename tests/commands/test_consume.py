"""``assay consume``: nothing is settled that was not shown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import msgspec
import pytest
import yaml

from assay.reference_broker.clients.http_client import HttpQueues
from assay.reference_broker.commands import consume, messages
from assay.reference_broker.commands.ends import StoppedError
from assay.reference_broker.commands.shown import Output
from tests.commands.conftest import Assay

WAIT_S = 60.0


def payloads(assay: Assay, *words: str) -> list[str]:
    return assay("consume", *words, "--payloads", "--wait", "0").split("\n")[:-1]


def test_without_a_group_messages_are_read_and_stay(assay: Assay) -> None:
    assay("queue", "create", "read", "-p", "2")
    for partition in "01":
        assay("produce", "read", *(f"{partition}{number}" for number in range(3)), "-p", partition)
    assert payloads(assay, "read") == ["00", "01", "02", "10", "11", "12"]
    assert payloads(assay, "read", "-p", "1", "--from", "1") == ["11", "12"]
    assert payloads(assay, "read", "--from", "latest") == []
    assert payloads(assay, "read", "-n", "4") == ["00", "01", "02", "10"]
    assert assay.json("queue", "stats", "read")["depth"] == 6
    assert "unknown_queue" in assay.fails(1, "consume", "nowhere")
    assert "--max" in assay.fails(2, "consume", "read", "-n", "0")


def test_with_a_group_they_are_settled_as_it_is_said(assay: Assay) -> None:
    assay("queue", "create", "taken", "-p", "1", "--set", "retry.max_retries=0")
    assay("produce", "taken", *"abcdef")
    assert payloads(assay, "taken", "-g", "g", "-n", "1") == ["a"]
    assert payloads(assay, "taken", "-g", "g", "-n", "2", "--settle", "release") == ["b", "c"]
    assert payloads(assay, "taken", "-g", "g", "-n", "1", "--settle", "reject") == ["b"]
    assert payloads(assay, "taken", "-g", "g", "-n", "1", "--settle", "fail") == ["c"]
    assert payloads(assay, "taken", "-g", "g") == ["d", "e", "f"]
    assert payloads(assay, "taken", "-g", "late", "--from", "4") == ["e", "f"]
    stats = assay.json("queue", "stats", "taken")
    assert stats["dead_letters"] == 2
    assert stats["consumers"] == 0


def test_forms(assay: Assay) -> None:
    assay("queue", "create", "forms", "-p", "1")
    assay("produce", "forms", "a\tb\x1b[31m", "-k", "k", "-H", "a=b")
    assay("produce", "forms", text=b"\xff\n")
    first, second = assay("consume", "forms").splitlines()
    assert first.split("\t")[0::3] == ["forms:0:0", "a\\tb\\x1b[31m"], "nothing reaches the terminal's controls"
    assert second.endswith("\tbase64:/w==")
    assert "\ta=b\t" in assay("consume", "forms", "-n", "1", "-o", "wide")
    documents = list(yaml.safe_load_all(assay("consume", "forms", "-o", "yaml")))
    assert [each["offset"] for each in documents] == [0, 1]
    result = assay.run("consume", "forms", "--payloads")
    assert result.stdout_bytes == b"a\tb\x1b[31m\n\xff\n"


@pytest.mark.parametrize("error", [BrokenPipeError, KeyboardInterrupt])
def test_what_could_not_be_shown_is_not_settled(
    assay: Assay, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    queue = f"unshown-{error.__name__}"
    assay("queue", "create", queue, "-p", "1")
    assay("produce", queue, *"abc")

    def fails(*_: object, **__: object) -> None:
        raise error

    defaults = {each.name: each.default for each in consume.CONSUME.parameters}
    values = {**defaults, "queue": queue, "group": "g", "output": Output.TABLE}
    with monkeypatch.context() as patch, HttpQueues(str(assay.environment["ASSAY_SERVER"])) as client:
        patch.setattr(consume, "write", fails)
        with pytest.raises((error, StoppedError)):
            consume.run(client, values)
    assert payloads(assay, queue, "-g", "g") == ["a", "b", "c"]


def test_following_goes_on_as_messages_come(assay: Assay, monkeypatch: pytest.MonkeyPatch) -> None:
    assay("queue", "create", "follow", "-p", "1")
    shown: list[Any] = []
    asked = [0]
    monkeypatch.setattr(consume, "write", lambda found, *_, **__: shown.extend(each["payload"] for each in found))
    ask = HttpQueues.ask

    def counted(self: HttpQueues, method: str, where: str, **options: Any) -> Any:
        if where.endswith(("/consume", "/partitions/0/messages")):
            asked[0] += 1
            if asked[0] == 2:
                ask(self, "POST", "/queues/follow/messages", body={"messages": [{"payload": "new"}]})
            if asked[0] == 4:
                raise KeyboardInterrupt
        return ask(self, method, where, **options)

    monkeypatch.setattr(HttpQueues, "ask", counted)
    monkeypatch.setattr(consume, "_FOLLOW_WAIT_S", 0.01)
    monkeypatch.setattr(consume, "_READ_AGAIN_S", 0.0)
    assay("consume", "follow", "-f", "-g", "g")
    assert shown == ["new"]
    shown.clear()
    asked[0] = 0
    assay("consume", "follow", "-f", "--from", "1")
    assert shown == ["new"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_settled_that_was_not_shown(assay: Assay, number: signal.Signals) -> None:
    queue = f"interrupted-{number.name}"
    assay("queue", "create", queue, "-p", "1")
    # More in a batch than a pipe holds: it is written in part when the signal comes.
    everything = [f"{each:04d}" + "x" * 2_000 for each in range(250)]
    assay("produce", queue, text="\n".join(everything))
    command = [sys.executable, "-m", "assay", "consume", queue, "-g", "g", "--follow", "--payloads"]
    environment = {**os.environ, **{name: str(value) for name, value in assay.environment.items()}}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        shown = [process.stdout.readline() for _ in range(105)]
        process.send_signal(number)
        shown += process.stdout.readlines()
        assert process.wait(WAIT_S) == 0
    whole = {line.decode().rstrip("\n") for line in shown if line.endswith(b"x\n")}
    again = set(payloads(assay, queue, "-g", "g"))
    assert whole | again == set(everything)
    assert len(again) >= 50, "what had not been read was not all written"
    assert whole - again, "what was shown is settled"


def test_a_stream_may_be_of_any_size_and_is_held_a_batch_at_a_time(
    assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    assay("queue", "create", "large", "-p", "1")
    assay("produce", "large", text="\n".join(map(str, range(350))))
    batches: list[int] = []
    write = messages.write

    def counted(found: Any, *arguments: Any, **options: Any) -> None:
        batches.append(len(found))
        write(found, *arguments, **options)

    monkeypatch.setattr(consume, "write", counted)
    assert len(payloads(assay, "large", "-g", "g")) == 350
    assert max(batches) == consume.BATCH
    lines = assay("consume", "large", "-o", "json").splitlines()
    assert [msgspec.json.decode(line)["offset"] for line in lines] == list(range(350))
