"""What a simulated disk keeps and loses."""

from __future__ import annotations

import errno
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.storage.disk import DirectoryInUseError, RealDisk
from assay.sim.disk import DiskProfile, Persistence, SimDisk

NOTHING = (Persistence.NONE,)


def disk(seed: int = 1, **profile: object) -> SimDisk:
    return SimDisk(random.Random(seed), DiskProfile(**profile))


def durable_file(on: SimDisk, path: str, data: bytes) -> None:
    file = on.open(path, create=True)
    file.append(data)
    file.sync()
    on.sync_folder(path.rpartition("/")[0])


def content(on: SimDisk, path: str) -> bytes:
    file = on.open(path)
    return file.read_at(0, file.size)


def test_a_crash_of_the_process_loses_nothing_that_was_written() -> None:
    device = disk()
    file = device.open("log", create=True)
    file.append(b"unsynced")
    device.crash()
    assert content(device, "log") == b"unsynced"
    with pytest.raises(OSError, match="descriptor"):
        file.append(b"from beyond")


def test_power_loss_loses_what_was_not_synced() -> None:
    device = disk()
    durable_file(device, "log", b"kept")
    file = device.open("log")
    file.append(b"lost")
    assert content(device, "log") == b"keptlost"
    device.power_loss(NOTHING)
    assert content(device, "log") == b"kept"


def test_power_loss_never_loses_what_was_synced() -> None:
    for seed in range(200):
        device = disk(seed)
        durable_file(device, "log", b"0123456789" * 200)
        file = device.open("log")
        for number in range(5):
            file.append(bytes([65 + number]) * 300)
        outcome = device.power_loss()
        assert content(device, "log")[:2000] == b"0123456789" * 200, outcome


def test_power_loss_shows_every_kind_of_damage() -> None:
    """Over many seeds: nothing, a prefix, a torn write, a hole, zeros, everything."""
    seen: Counter[str] = Counter()
    writes = [bytes([65 + number]) * 1000 for number in range(4)]
    for seed in range(300):
        device = disk(seed)
        durable_file(device, "log", b"")
        file = device.open("log")
        for data in writes:
            file.append(data)
        device.power_loss()
        left = content(device, "log")
        if left == b"".join(writes):
            seen["all"] += 1
        elif not left:
            seen["nothing"] += 1
        elif left == bytes(4000):
            seen["zeros"] += 1
        elif b"\x00" in left:
            seen["hole"] += 1
        elif len(left) % 1000:
            seen["torn"] += 1
        else:
            seen["prefix"] += 1
    assert set(seen) == {"all", "nothing", "zeros", "hole", "torn", "prefix"}, seen


def test_a_file_whose_folder_was_not_synced_may_be_gone() -> None:
    gone = 0
    for seed in range(50):
        device = disk(seed)
        file = device.open("new", create=True)
        file.append(b"data")
        file.sync()
        device.power_loss()
        gone += not device.exists("new")
    assert 5 < gone < 45


def test_a_folder_that_was_not_synced_takes_its_files_with_it() -> None:
    device = disk()
    device.make_folder("queues/orders")
    durable_file(device, "queues/orders/log", b"data")
    device.power_loss(NOTHING)
    assert not device.exists("queues")
    assert device.list("queues/orders") == []


def test_synced_folders_stay() -> None:
    device = disk()
    device.make_folder("queues/orders")
    durable_file(device, "queues/orders/log", b"data")
    device.sync_folder("queues")
    device.sync_folder("")
    device.power_loss(NOTHING)
    assert content(device, "queues/orders/log") == b"data"


def test_a_rename_is_old_or_new_and_never_neither() -> None:
    results = set()
    for seed in range(40):
        device = disk(seed)
        durable_file(device, "state", b"old")
        temporary = device.open("state.tmp", create=True)
        temporary.append(b"new")
        temporary.sync()
        device.rename("state.tmp", "state")
        assert content(device, "state") == b"new"
        device.power_loss()
        results.add(content(device, "state"))
    assert results == {b"old", b"new"}


def test_a_rename_is_durable_after_a_folder_sync() -> None:
    device = disk()
    durable_file(device, "state", b"old")
    durable_file(device, "state.tmp", b"new")
    device.rename("state.tmp", "state")
    device.sync_folder("")
    device.power_loss(NOTHING)
    assert content(device, "state") == b"new"
    assert not device.exists("state.tmp")


def test_a_deferred_sync_covers_what_was_written_before_it_and_counts_when_committed() -> None:
    device = disk()
    durable_file(device, "log", b"")
    file = device.open("log")
    file.append(b"before")
    with device.deferred() as flush:
        file.sync()
    file.append(b"after")
    device.finish(flush)
    device.power_loss(NOTHING)
    assert content(device, "log") == b"before"


def test_a_deferred_sync_that_did_not_finish_covers_nothing() -> None:
    device = disk()
    durable_file(device, "log", b"")
    file = device.open("log")
    file.append(b"before")
    with device.deferred():
        file.sync()
    device.power_loss(NOTHING)
    assert content(device, "log") == b""


def deletion(device: SimDisk) -> None:
    """As a job deletes: what the folder holds, then the file that says what it is."""
    device.remove("queue/messages/log")
    device.sync_folder("queue/messages")
    device.remove("queue/queue.json")
    device.sync_folder("queue")


def with_a_queue(seed: int) -> SimDisk:
    device = disk(seed)
    device.make_folder("queue/messages")
    durable_file(device, "queue/messages/log", b"messages")
    durable_file(device, "queue/queue.json", b"{}")
    device.sync_folder("")
    return device


def left_of(device: SimDisk) -> tuple[bool, bool]:
    return device.exists("queue/messages/log"), device.exists("queue/queue.json")


INTACT, HALF, GONE = (True, True), (False, True), (False, False)


def test_a_power_loss_keeps_the_order_of_what_a_job_synced() -> None:
    """It comes no further than to one of its sync calls, whatever others do meanwhile."""
    seen = set()
    for seed in range(60):
        device = with_a_queue(seed)
        with device.deferred():
            deletion(device)
        durable_file(device, "of another", b"kept")
        device.power_loss()
        assert content(device, "of another") == b"kept"
        seen.add(left_of(device))
    assert seen == {INTACT, HALF, GONE}


def test_where_another_sync_covers_what_a_job_did_the_job_had_come_there() -> None:
    for seed in range(20):
        device = with_a_queue(seed)
        with device.deferred():
            deletion(device)
        device.sync_folder("queue")
        device.power_loss()
        assert left_of(device) == GONE


def test_a_job_under_way_may_have_covered_what_an_older_one_did() -> None:
    seen = set()
    for seed in range(60):
        device = with_a_queue(seed)
        for job in (deletion, lambda on: on.sync_folder("queue")):
            with device.deferred():
                job(device)
        device.power_loss()
        seen.add(left_of(device))
    assert seen == {INTACT, HALF, GONE}


def test_a_killed_process_leaves_a_job_in_one_of_its_sync_calls() -> None:
    """Nothing that it had done is lost, and what comes behind the call was not done."""
    seen = set()
    for seed in range(60):
        device = with_a_queue(seed)
        with device.deferred():
            deletion(device)
        device.open("queue/of another", create=True).append(b"kept")
        device.crash()
        assert content(device, "queue/of another") == b"kept"
        seen.add(left_of(device))
        if left_of(device) == INTACT:
            pytest.fail("the removal comes before the first sync call")
        device.power_loss()
        assert left_of(device) in {INTACT, HALF, GONE}
    assert seen == {HALF, GONE}


def test_what_a_job_had_synced_before_it_was_killed_is_durable() -> None:
    device = with_a_queue(1)
    with device.deferred():
        device.remove("queue/messages/log")
        device.sync_folder("queue/messages")
        device.remove("queue/queue.json")
        device.power_loss(NOTHING)
    assert left_of(device) == HALF


def test_a_job_that_had_not_come_to_it_made_and_wrote_nothing() -> None:
    """Folders, files and bytes that it had written behind a call that had not come back."""
    seen = set()
    for seed in range(40):
        device = with_a_queue(seed)
        used_bytes = device.used_bytes
        with device.deferred():
            device.sync_folder("queue")
            device.make_folder("queue/new")
            device.open("queue/new/file", create=True).append(b"12345")
            device.rename("queue/queue.json", "queue/queue.old")
            log = device.open("queue/messages/log")
            log.truncate(3)
            log.append(b"more")
        device.crash()
        came_there = device.exists("queue/new")
        seen.add(came_there)
        assert content(device, "queue/messages/log") == (b"mesmore" if came_there else b"messages")
        assert device.exists("queue/queue.json") is not came_there
        assert device.list("queue/new") == (["file"] if came_there else [])
        assert device.used_bytes == used_bytes + 4 * came_there
    assert seen == {False, True}


def test_a_job_whose_sync_fails_is_told_at_once_and_does_not_go_on() -> None:
    device = with_a_queue(1)
    device.profile = DiskProfile(failing_syncs=(device.sync_count + 1,))
    with device.deferred() as flush, pytest.raises(OSError, match="Input/output"):
        deletion(device)
    device.finish(flush)
    assert left_of(device) == HALF
    device.power_loss((Persistence.ALL,))
    assert left_of(device) in {INTACT, HALF}


def test_a_sync_outside_deferred_costs_its_caller_time() -> None:
    device = disk(stall_rate=0.0, sync_s=(0.25, 0.25))
    device.open("log", create=True).sync()
    assert device.take_blocked_s() == 0.25
    assert device.take_blocked_s() == 0.0


def test_a_failed_sync_forgets_what_it_did_not_write() -> None:
    device = disk(failing_syncs=(1,))
    file = device.open("log", create=True)
    file.append(b"data")
    with pytest.raises(OSError) as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    file.sync()  # says yes, although the data is lost: the pages are no longer dirty
    device.sync_folder("")
    assert content(device, "log") == b"data"
    device.power_loss((Persistence.ALL,))
    assert content(device, "log") == b""


def test_a_lying_sync_keeps_nothing() -> None:
    device = disk()
    durable_file(device, "log", b"honest")
    device.profile = DiskProfile(lying_sync=True)
    file = device.open("log")
    file.append(b"lie")
    file.sync()
    device.power_loss(NOTHING)
    assert content(device, "log") == b"honest"


def test_a_full_disk_refuses_growth_and_takes_it_again_after_a_removal() -> None:
    device = disk(capacity_bytes=10)
    first = device.open("a", create=True)
    first.append(b"12345678")
    second = device.open("b", create=True)
    with pytest.raises(OSError) as caught:
        second.append(b"345")
    assert caught.value.errno == errno.ENOSPC
    assert second.size == 2, "what fits is written"
    second.truncate(0)
    first.write_at(0, b"overwritten"[:8])
    device.remove("a")
    second.append(b"345")


def test_one_owner_at_a_time_and_none_after_a_crash() -> None:
    device = disk()
    device.lock()
    with pytest.raises(DirectoryInUseError):
        device.lock()
    device.crash()
    device.lock()


def test_the_same_seed_loses_the_same() -> None:
    def lost(seed: int) -> bytes:
        device = disk(seed)
        durable_file(device, "log", b"x")
        file = device.open("log")
        for number in range(10):
            file.append(bytes([number]) * 700)
        device.power_loss()
        return content(device, "log")

    assert [lost(seed) for seed in range(20)] == [lost(seed) for seed in range(20)]
    assert len({lost(seed) for seed in range(20)}) > 5


OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from("abc"), st.binary(min_size=1, max_size=20)),
    st.tuples(st.just("write"), st.sampled_from("abc"), st.integers(0, 60), st.binary(min_size=1, max_size=10)),
    st.tuples(st.just("truncate"), st.sampled_from("abc"), st.integers(0, 60)),
    st.tuples(st.just("rename"), st.sampled_from("abc"), st.sampled_from("abc")),
    st.tuples(st.just("remove"), st.sampled_from("abc")),
    st.tuples(st.just("sync"), st.sampled_from("abc")),
)


@settings(max_examples=60, deadline=None)
@given(operations=st.lists(OPERATIONS, max_size=30))
def test_without_faults_it_is_a_disk_like_any_other(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[object, ...]]
) -> None:
    simulated, real = disk(), RealDisk(tmp_path_factory.mktemp("real"))

    def apply(on: SimDisk | RealDisk) -> list[object]:
        seen: list[object] = []
        for kind, name, *arguments in operations:
            try:
                if kind == "rename":
                    on.rename(str(name), str(arguments[0]))
                elif kind == "remove":
                    on.remove(str(name))
                else:
                    file = on.open(str(name), create=kind != "sync")
                    if kind == "append":
                        seen.append(file.append(arguments[0]))
                    elif kind == "write":
                        file.write_at(arguments[0], arguments[1])
                    elif kind == "truncate":
                        file.truncate(arguments[0])
                    else:
                        file.sync()
                    seen.append((file.size, file.read_at(0, 1000)))
                    file.close()
            except FileNotFoundError:
                seen.append("absent")
        return [*seen, [(name, content_of(on, name)) for name in on.list("")]]

    assert apply(simulated) == apply(real)


def content_of(on: SimDisk | RealDisk, name: str) -> bytes:
    file = on.open(name)
    try:
        return file.read_at(0, file.size)
    finally:
        file.close()
