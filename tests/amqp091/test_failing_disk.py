"""What clients are told while the disk refuses writes: no answer promises what the next start may undo."""

from __future__ import annotations

import pytest

from assay.reference_broker.config import Durability, SessionsConfig
from assay.reference_broker.node import BrokerNode
from tests.queues.failing_disk import FailingDisk
from tests.support.amqp_client import NOW, AmqpClient, Said, make_node

SESSIONS = SessionsConfig(durability=Durability.FSYNC)


def a_node(disk: FailingDisk, now: float = NOW) -> BrokerNode:
    return make_node(disk, now, sessions=SESSIONS)


def client(node: BrokerNode, now: float = NOW) -> AmqpClient:
    found = AmqpClient(node, now=now)
    found.open()
    return found


def declare_exchange(c: AmqpClient, *, passive: bool = False) -> list[str]:
    return names(c.say(1, "exchange.declare", "e", "topic", passive, True, False, False, False, ()))


def delete_exchange(c: AmqpClient, *, syncs: bool = True) -> list[str]:
    return names(c.say(1, "exchange.delete", "e", False, False, syncs=syncs))


def delete_queue(c: AmqpClient) -> list[str]:
    """Its turns run jobs to their end, failing or not."""
    c.say(1, "queue.delete", "q", False, False, False, syncs=False)
    for job in c.node.take_jobs(c.now):
        error: OSError | None = None
        try:
            job.run()
        except OSError as refused:
            error = refused
        c.node.job_done(job, error, c.now)
    return names(c.hear())


def names(said: list[Said]) -> list[str]:
    return [each.name for each in said]


def test_a_deletion_that_is_tried_again_is_answered_once_the_first_is_written() -> None:
    """The hunt found the exchange there again after a crash: its deletion still waited for room on the disk, and who
    deleted what was gone by then was told at once that it is."""
    disk = FailingDisk()
    node = a_node(disk)
    first, second, third = client(node), client(node), client(node)
    assert declare_exchange(first) == ["exchange.declare-ok"]
    disk.fail_write = "sessions"
    assert delete_exchange(first) == []
    assert first.end.closing
    assert delete_exchange(second) == [], "it is written with the next try, and that fails as well"
    assert second.end.closing
    disk.fail_write = ""
    assert delete_exchange(third) == ["exchange.delete-ok"]
    assert declare_exchange(client(a_node(disk, NOW + 1), NOW + 1), passive=True) == ["channel.close"]


def test_nobody_is_told_of_a_deletion_whose_sync_still_runs() -> None:
    node = a_node(FailingDisk())
    first, second = client(node), client(node)
    declare_exchange(first)
    assert delete_exchange(first, syncs=False) == []
    assert delete_exchange(second, syncs=False) == [], "a loss of power brings the exchange back"
    assert names(first.hear()) == ["exchange.delete-ok"]
    assert names(second.hear()) == ["exchange.delete-ok"]


def test_after_a_sync_that_failed_nobody_is_told_of_what_it_was_to_cover() -> None:
    disk = FailingDisk()
    node = a_node(disk)
    first, second = client(node), client(node)
    declare_exchange(first)
    assert delete_exchange(first, syncs=False) == []
    for job in node.take_jobs(NOW):
        node.job_done(job, OSError(5, "Input/output error"), NOW)
    assert first.hear() == []
    assert delete_exchange(second) == []
    assert second.end.closing


def test_a_queue_that_could_not_be_removed_is_removed_when_it_is_deleted_again() -> None:
    disk = FailingDisk()
    node = a_node(disk)
    c, again = client(node), client(node)
    declare_exchange(c)
    c.declare("q")
    c.say(1, "queue.bind", "q", "e", "#", False, ())
    disk.fail_write = "q"
    assert delete_queue(c) == ["connection.close"]
    assert delete_queue(again) == ["connection.close"], "the next start may bring it back"
    disk.fail_write = ""
    again = client(node)
    assert delete_queue(again) == ["queue.delete-ok"]
    again.declare("q")
    restarted = client(a_node(disk, NOW + 1), NOW + 1)
    restarted.publish("a", b"x", exchange="e")
    assert restarted.get("q").name == "basic.get-empty", "its bindings went with it"


def test_a_queue_that_could_not_be_removed_makes_room_for_another_of_its_name() -> None:
    disk = FailingDisk()
    node = a_node(disk)
    c = client(node)
    c.declare("q")
    c.publish("q", b"old")
    disk.fail_write = "q"
    assert delete_queue(c) == ["connection.close"]
    disk.fail_write = ""
    again = client(node)
    assert again.declare("q").values == ("q", 0, 0)


@pytest.mark.parametrize(
    ("how", "flags"), [("basic.nack", (False, True)), ("basic.reject", (True,)), ("basic.ack", (False,))]
)
def test_a_settlement_that_the_queue_refuses_ends_the_connection(how: str, flags: tuple[bool, ...]) -> None:
    """The hunt found a message that its consumer had returned, and that nobody got again until the channel ended: a
    write had failed just before, and the queue took no settlements for a while."""
    disk = FailingDisk()
    node = a_node(disk)
    c = client(node)
    c.declare("q")
    for body in (b"first", b"second"):
        c.publish("q", body)
    c.consume("q")
    disk.fail_write = "q/"
    c.say(1, "basic.nack", 1, False, True)
    disk.fail_write = ""
    assert names(c.say(1, how, 2, *flags)) == ["connection.close"]
    later = client(node, NOW + 10)
    assert {later.get("q").body, later.get("q").body} == {b"first", b"second"}
