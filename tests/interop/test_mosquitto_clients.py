"""mosquitto_pub, mosquitto_sub and mosquitto_rr, unchanged, in both versions."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.interop.conftest import InteropBroker

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(
        shutil.which("mosquitto_rr") is None or shutil.which("stdbuf") is None,
        reason="mosquitto_rr or stdbuf is not installed (Debian: mosquitto-clients, coreutils)",
    ),
]
WAIT_S = 20
BOTH = pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
_numbers = itertools.count(1)
NOT_AUTHORIZED = "not authori"
"""What they say of a wrong password, in either spelling and version."""


class Cli:
    """Mosquitto's clients against one listener, with topics of this test alone."""

    def __init__(self, interop: InteropBroker, version: str, *, tls: bool = False) -> None:
        self.root = f"mosquitto/{next(_numbers)}"
        self.version = version
        port = interop.ports["tls" if tls else "tcp"]
        self._address = ["-h", "127.0.0.1", "-p", str(port), "-V", version]
        if tls:
            self._address += ["--cafile", interop.authority]

    def topic(self, name: str) -> str:
        return f"{self.root}/{name}"

    def run(self, program: str, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *self._address, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def pub(self, topic: str, *arguments: str, text: str | None = None) -> None:
        done = self.run("mosquitto_pub", "-t", topic, *arguments, text=text)
        assert done.returncode == 0, done.stderr

    def sub(self, topic: str, count: int, *arguments: str) -> list[str]:
        """Lines of so many messages that wait for it already."""
        done = self.run("mosquitto_sub", "-t", topic, "-C", str(count), "-W", str(WAIT_S), *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    @contextmanager
    def subscriber(self, topic: str, *arguments: str, program: str = "mosquitto_sub") -> Iterator[Subscriber]:
        """One that runs, and whose subscription stands."""
        process = subprocess.Popen(
            ["stdbuf", "-oL", program, *self._address, "-t", topic, *arguments, "-d"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )
        running = Subscriber(process)
        too_long = threading.Timer(WAIT_S, process.kill)
        too_long.start()
        try:
            running.until("received SUBACK")
            yield running
        finally:
            too_long.cancel()
            process.kill()
            process.wait(WAIT_S)
            assert process.stdout is not None
            process.stdout.close()


class Subscriber:
    """A client with its debug output on, line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield line.strip()
        raise AssertionError("the client ended")

    def until(self, text: str) -> str:
        return next(line for line in self.lines() if text in line)

    def messages(self, count: int) -> list[str]:
        """Messages printed in the format ``= ...``, past the debug output."""
        return list(itertools.islice((line[2:] for line in self.lines() if line.startswith("= ")), count))


@BOTH
@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
def test_messages_pass_at_every_qos(interop: InteropBroker, version: str, tls: bool) -> None:
    cli = Cli(interop, version, tls=tls)
    with cli.subscriber(cli.topic("#"), "-q", "2", "-F", "= %t %p %q %r") as subscriber:
        for qos in ("0", "1", "2"):
            cli.pub(cli.topic(f"q{qos}"), "-q", qos, "-l", text="one\ntwo\n")
            expected = [f"{cli.topic(f'q{qos}')} {payload} {qos} 0" for payload in ("one", "two")]
            assert subscriber.messages(2) == expected


@BOTH
def test_retained_messages_come_until_they_are_deleted(interop: InteropBroker, version: str) -> None:
    cli = Cli(interop, version)
    cli.pub(cli.topic("kept"), "-r", "-q", "1", "-m", "kept")
    assert cli.sub(cli.topic("#"), 1, "-F", "%t %p %r") == [f"{cli.topic('kept')} kept 1"]
    cli.pub(cli.topic("kept"), "-r", "-q", "1", "-n")
    cli.pub(cli.topic("later"), "-r", "-q", "1", "-m", "later")
    assert cli.sub(cli.topic("#"), 1, "-F", "%p") == ["later"]


@BOTH
def test_the_will_of_a_killed_client_is_published(interop: InteropBroker, version: str) -> None:
    cli = Cli(interop, version)
    will = ("--will-topic", cli.topic("will"), "--will-payload", "gone", "--will-qos", "1", "--will-retain")
    with cli.subscriber(cli.topic("will"), "-q", "1", "-F", "= %p %q") as watcher:
        with cli.subscriber(cli.topic("nothing"), *will):
            pass  # leaving the block kills it
        assert watcher.messages(1) == ["gone 1"]
    assert cli.sub(cli.topic("will"), 1, "-F", "%p %r") == ["gone 1"]


@BOTH
def test_a_persistent_session_gets_what_came_meanwhile(interop: InteropBroker, version: str) -> None:
    cli = Cli(interop, version)
    session = ["-c", "-i", f"{cli.root}-session", "-q", "2"]
    if version == "mqttv5":
        session += ["-x", "300"]
    assert cli.run("mosquitto_sub", "-t", cli.topic("t"), *session, "-E").returncode == 0
    for qos in ("1", "2"):
        cli.pub(cli.topic("t"), "-q", qos, "-m", f"at {qos}")
    assert sorted(cli.sub(cli.topic("t"), 2, *session)) == ["at 1", "at 2"]


@BOTH
def test_the_right_password_lets_in_and_a_wrong_one_does_not(interop: InteropBroker, version: str) -> None:
    cli = Cli(interop, version)
    cli.pub(cli.topic("t"), "-u", "ann", "-P", "secret", "-m", "x", "-q", "1")
    for user, password in (("ann", "wrong"), ("nobody", "secret")):
        refused = cli.run("mosquitto_pub", "-t", cli.topic("t"), "-m", "x", "-u", user, "-P", password)
        assert refused.returncode != 0
        assert any(words in refused.stderr.lower() for words in (NOT_AUTHORIZED, "bad user name or password"))


@BOTH
def test_a_large_file_arrives_whole(interop: InteropBroker, version: str, tmp_path: Path) -> None:
    cli = Cli(interop, version)
    path = tmp_path / "large"
    path.write_text("0123456789abcdef" * 62_500)
    cli.pub(cli.topic("large"), "-r", "-q", "1", "-f", str(path))
    assert cli.sub(cli.topic("large"), 1) == [path.read_text()]
    cli.pub(cli.topic("large"), "-r", "-q", "1", "-n")


@BOTH
def test_a_second_client_with_the_same_id_takes_over(interop: InteropBroker, version: str) -> None:
    cli = Cli(interop, version)
    same = ("-i", f"{cli.root}-same")
    with cli.subscriber(cli.topic("a"), *same) as first:
        taken = cli.run("mosquitto_sub", "-t", cli.topic("b"), *same, "-E")
        assert taken.returncode == 0
        if version == "mqttv5":
            first.until("Received DISCONNECT (142)")
        else:
            # Without a reason mosquitto_sub takes it for a failure of the network, and takes over in its turn.
            first.until("received SUBACK")


@BOTH
def test_unsubscribing_while_subscribing_elsewhere(interop: InteropBroker, version: str) -> None:
    cli = Cli(interop, version)
    arguments = ("-t", cli.topic("b"), "-U", cli.topic("a"), "-q", "1", "-F", "= %t")
    with cli.subscriber(cli.topic("a"), *arguments) as subscriber:
        subscriber.until("received UNSUBACK")
        cli.pub(cli.topic("a"), "-m", "x", "-q", "1")
        cli.pub(cli.topic("b"), "-m", "x", "-q", "1")
        assert subscriber.messages(1) == [cli.topic("b")]


@BOTH
def test_request_and_response(interop: InteropBroker, version: str) -> None:
    """In 3.1.1 the responder has to know the response topic; in 5.0 the request brings it."""
    cli = Cli(interop, version)
    with cli.subscriber(cli.topic("request"), "-q", "1", "-F", "= %p") as responder:
        requester = subprocess.Popen(
            ["mosquitto_rr", *cli._address, "-t", cli.topic("request"), "-e", cli.topic("response"), "-m", "question",
             "-q", "1", "-W", str(WAIT_S)],
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert responder.messages(1) == ["question"]
        cli.pub(cli.topic("response"), "-q", "1", "-m", "answer")
        assert requester.communicate(timeout=WAIT_S)[0].strip() == "answer"
        assert requester.returncode == 0


# -- MQTT 5.0 ---------------------------------------------------------------------------------------------------------


def test_properties_arrive(interop: InteropBroker) -> None:
    cli = Cli(interop, "mqttv5")
    given = {
        "content-type": "text/plain",
        "response-topic": "answers/here",
        "correlation-data": "c7",
        "payload-format-indicator": "1",
        "message-expiry-interval": "600",
    }
    arguments = [word for name, value in given.items() for word in ("-D", "publish", name, value)]
    arguments += ["-D", "publish", "user-property", "name", "ünï"]
    with cli.subscriber(cli.topic("t"), "-F", "= %j", "-D", "subscribe", "subscription-identifier", "77") as subscriber:
        cli.pub(cli.topic("t"), "-m", "{}", *arguments)
        (line,) = subscriber.messages(1)
    properties = json.loads(line)["properties"]
    assert properties["user-properties"] == [{"name": "ünï"}] or properties["user-properties"] == {"name": "ünï"}
    assert properties["content-type"] == "text/plain"
    assert properties["response-topic"] == "answers/here"
    assert properties["subscription-identifier"] == 77 or properties["subscription-identifier"] == [77]
    assert 590 <= properties["message-expiry-interval"] <= 600


def test_members_of_a_shared_subscription_divide_the_messages(interop: InteropBroker) -> None:
    cli = Cli(interop, "mqttv5")
    shared = f"$share/workers/{cli.topic('job')}"
    with cli.subscriber(shared, "-F", "= %p") as one, cli.subscriber(shared, "-F", "= %p") as two:
        cli.pub(cli.topic("job"), "-l", "-q", "1", text="".join(f"{number}\n" for number in range(10)))
        received = one.messages(5) + two.messages(5)
    assert sorted(received, key=int) == [str(number) for number in range(10)]


def test_topic_aliases_of_a_stream_of_lines(interop: InteropBroker) -> None:
    cli = Cli(interop, "mqttv5")
    with cli.subscriber(cli.topic("t"), "-F", "= %t %p") as subscriber:
        cli.pub(cli.topic("t"), "-D", "publish", "topic-alias", "5", "-q", "1", "-l", text="one\ntwo\nthree\n")
        assert subscriber.messages(3) == [f"{cli.topic('t')} {payload}" for payload in ("one", "two", "three")]


def test_no_local_and_retain_as_published(interop: InteropBroker) -> None:
    cli = Cli(interop, "mqttv5")
    with cli.subscriber(cli.topic("t"), "--retain-as-published", "-F", "= %p %r") as subscriber:
        cli.pub(cli.topic("t"), "-r", "-q", "1", "-m", "kept")
        assert subscriber.messages(1) == ["kept 1"]
    cli.pub(cli.topic("t"), "-r", "-q", "1", "-n")


def test_a_publisher_is_told_that_nobody_listens(interop: InteropBroker) -> None:
    cli = Cli(interop, "mqttv5")
    done = cli.run("mosquitto_pub", "-t", cli.topic("nobody"), "-q", "1", "-m", "x", "-d")
    assert done.returncode == 0
    assert "RC:16" in done.stdout
