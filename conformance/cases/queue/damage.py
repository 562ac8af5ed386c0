"""Lives of a queue whose files are damaged while the broker is dead (see :mod:`assay.conformance.cases.damaged_files`).

What is not damaged is there, nothing comes that was never published, the broker starts and goes on, and the next
restart changes nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from assay.conformance.case import CaseContext, CaseFunction, case
from assay.conformance.cases.damaged_files import (
    Harm,
    Hurt,
    Watch,
    cut,
    empty,
    flip,
    garbage_behind,
    half_a_record_behind,
    missing,
    zeros_behind,
    zeros_within,
)
from assay.conformance.cases.queue.administration import ask, create, refused
from assay.conformance.cases.queue.bursts import accepted, settle_together
from assay.conformance.cases.queue.lives import Group, QueueLife
from assay.conformance.cases.queue.support import consume, deliveries, new_queue, property_of, settle
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Puback, Publish

_LIMIT_S = 20.0
_STEPS, _MORE = 6, 4
_FILLING = b"." * 100
"""Of each payload: by that much the file of messages grows at least, and no file of indexes."""
_FEWEST_STEPS = 2
"""That a file of messages has grown in: what grew once is no log."""
_MANY = 60
"""Messages of half a kilobyte: several segments."""
_WRITES = 4
_FIRST_BYTES = 48
"""Of a write, each of which is damaged once: what tells where it ends is among them, and what tells what it is."""
_TORN = 6
"""Partitions of which a whole write is damaged, and the last one cut."""
_PUT_ASIDE = ".corrupt"
"""What the broker keeps of damage, and never reads."""
SETTINGS: dict[str, Any] = {
    "queues": {
        "segment_bytes": 8_192,
        "defaults": {"durability": "fsync", "delivery_timeout_s": 3_600, "retry": {"initial_backoff_s": 0.01}},
    }
}


class _DamagedLife(QueueLife):
    """A round for each of ``harms``, which are done to files of messages, of settlements, or to others."""

    def __init__(self, ctx: CaseContext, settings: dict[str, Any], harms: tuple[Harm, ...], of: str) -> None:
        super().__init__(ctx, settings, ())
        self.harms, self.of = harms, of
        self.watch = Watch(ctx.data_dir, self.queue)
        self.published: dict[int, tuple[int, ...]] = {}
        """Step to the messages."""
        self.settled: dict[int, tuple[Group, int]] = {}
        self.was_hit = False
        self.kept: tuple[Path, bytes, bytes | None] | None = None
        """The file that was damaged last, as it was before and after that."""
        self.harmed: dict[str, int] = {}
        """Ends of names to how often such a file was damaged."""

    async def publish(self, publisher: Connection) -> None:
        for _ in range(_STEPS):
            self.watch.begin()
            # What is written in one go is damaged as one: no more than the server takes at a time.
            first, count = len(self.sent), self.rng.choice((1, 1, 1, 2, 5))
            count = min(count, publisher.connack.properties.receive_maximum or count)
            await self._publish_some(publisher, count)
            self.published[self.watch.step()] = tuple(range(first, first + count))

    async def _publish_some(self, publisher: Connection, count: int, *, may_be_refused: bool = False) -> bool:
        packets = []
        for place in range(count):
            made = self._message(len(self.sent) + place)
            payload, packet_id = made.payload + _FILLING, publisher.next_packet_id()
            packets.append(
                Publish(topic=made.topic, payload=payload, qos=1, packet_id=packet_id, properties=made.properties)
            )
        publisher.send(*packets)
        for _ in packets:
            puback = await publisher.expect(Puback)
            if may_be_refused and puback.reason_code >= 0x80:
                return False
            self.ctx.must(puback.reason_code < 0x80, f"publisher: expected the message to be taken; seen {puback}")
        for group in self.groups:
            group.left |= dict.fromkeys(range(len(self.sent), len(self.sent) + count), 0)
        self.sent += packets
        return True

    async def settle(self, consumer: Connection, group: Group, held: dict[int, Publish]) -> None:
        for number, delivery in held.items():
            if self.rng.random() < 0.5:
                self.watch.begin()
                await self._send(consumer, "ack", [delivery])
                del group.left[number]
                self.settled[self.watch.step()] = (group, number)

    # What is damaged

    def _files(self) -> list[Path]:
        now = self.watch.sizes()
        of_messages = {path for path in now if self._holds_payloads(path)}
        logs = {path for step in self.settled for path in self.watch.files_of(step)} - of_messages
        folders = {path.parent for path in logs}
        of_settlements = {path for path in now if path.parent in folders and path.suffix != _PUT_ASIDE}
        found = {"messages": of_messages, "settlements": of_settlements}
        wanted = found.get(self.of, now.keys() - of_messages - of_settlements)
        return sorted(path for path in wanted if now.get(path))

    def _holds_payloads(self, path: Path) -> bool:
        steps = 0
        for step, numbers in self.published.items():
            grown = self.watch.grown(step, path)
            steps += grown >= sum(len(self.sent[number].payload) for number in numbers)
        if steps >= _FEWEST_STEPS:
            return True
        with suppress(FileNotFoundError):  # the broker may be at work
            return _FILLING in path.read_bytes()
        return False

    def _choose(self, files: list[Path]) -> Path:
        """One of the kind of file that was damaged least so far; the newest of them as often as all others."""
        fewest = min(self.harmed.get(path.suffix, 0) for path in files)
        some = [path for path in files if self.harmed.get(path.suffix, 0) == fewest]
        some = [path for path in some if path.suffix == some[0].suffix]
        return self.rng.choice((some[-1], self.rng.choice(some)))

    def _aim(self, harm: Harm, files: list[Path]) -> tuple[Path, range | None] | None:
        """Where not chance decides: a file, and which of its bytes.

        A bit is flipped where messages stand behind it in its file that some group has not settled; garbage comes
        behind what was written last; the file that goes first is the one that was written first. In a file of
        settlements a bit is flipped where more of them stand behind it.
        """
        if self.of == "settlements" and harm is flip:
            # A file that was written anew since may be shorter.
            sizes = self.watch.sizes()
            logs = [each for each in self.watch.with_steps_behind(self.settled) if each[0] in files]
            logs = [(path, span) for path, span in logs if span.stop <= sizes.get(path, 0)]
            return self.rng.choice(logs) if logs else None
        if self.of != "messages":
            return None
        if harm is garbage_behind:
            last = sorted(self.watch.files_of(max(self.published)) & set(files))
            return (last[-1], None) if last else None
        if harm is missing and not self.harmed:
            front = self._front(files)
            return (front, None) if front else None
        if harm is not flip:
            return None
        waiting = {number for group in self.groups for number in group.left}
        steps = [step for step, numbers in self.published.items() if not waiting.isdisjoint(numbers)]
        found = [each for each in self.watch.with_steps_behind(steps) if each[0] in files]
        return self.rng.choice(found) if found else None

    def _front(self, files: list[Path]) -> Path | None:
        """What was written first, of a folder in which a file of its kind has followed it."""
        kinds = Counter((path.parent, path.suffix) for path in files)
        for step in self.published:
            for path in sorted(self.watch.files_of(step) & set(files)):
                if kinds[path.parent, path.suffix] > 1:
                    return path
        return None

    def _damage(self, harm: Harm) -> None:
        self.kept, self.was_hit = None, False
        files = self._files()
        if not files:
            return
        path, within = self._aim(harm, files) or (self._choose(files), None)
        self.harmed[path.suffix] = self.harmed.get(path.suffix, 0) + 1
        before = path.read_bytes()
        beside = [step for step in self.settled if self._is_beside(step, path)]
        is_log = sum(self.watch.grown(step, path) > 0 for step in beside) > len(beside) // 2
        hurt = harm(path, self.rng) if within is None else flip(path, self.rng, within)
        self.ctx.note(f"{path.relative_to(self.ctx.data_dir)}: {hurt.text}")
        self.kept = path, before, path.read_bytes() if path.exists() else None
        if self.of == "messages":
            for step, numbers in self.published.items():
                if self.watch.is_hit(step, path, hurt):
                    self.was_hit = True
                    for group in self.groups:
                        group.lost |= group.left.keys() & set(numbers)
        elif self.of == "settlements":
            self._may_come_again(path, hurt, is_log=is_log)

    def _may_come_again(self, path: Path, hurt: Hurt, *, is_log: bool) -> None:
        """What follows damage in the log of a group is not believed; any other file of it may tell all of it."""
        theirs = {group.name for step, (group, _) in self.settled.items() if self._is_beside(step, path)}
        begun = False
        for step, (group, number) in self.settled.items():
            # What is damaged may be of no step: a delivery is in the log, too.
            begun = begun or not is_log or self.watch.span(step, path).stop > hurt.start
            if begun and group.name in theirs:
                group.again.add(number)
        for group in self.groups:
            group.again -= group.left.keys()
            group.counts = group.name not in theirs
        self.watch.forget(path)

    def _is_beside(self, step: int, path: Path) -> bool:
        return any(file.parent == path.parent for file in self.watch.files_of(step))

    # The life

    async def _look(self, when: str) -> None:
        """Each group gets what it must; some of it is settled."""
        for group in self.groups:
            consumer = await consume(self.ctx, self.queue, group=group.name, name=f"{group.name} {when}")
            await self.settle(consumer, group, await self.take(consumer, group))
            await consumer.disconnect()

    async def _is_set_aside(self, publisher: Connection) -> bool:
        """Refused is what cannot be read; its name is not free, its files stay, and with the old file all is there."""
        if self.kept is None:
            return False
        path, before, damaged = self.kept
        if await self._publish_some(publisher, 1, may_be_refused=True):
            return False
        await refused(self.ctx, publisher, "create", {"name": self.queue})
        after = path.read_bytes() if path.exists() else None
        self.ctx.must(after == damaged, f"expected {path.name} to stay as it was")

        def mend() -> None:
            path.write_bytes(before)

        await self.ctx.restart(mend)
        return True

    async def live(self) -> None:
        await self.begin()
        await self.ctx.restart()
        for number, harm in enumerate(self.harms):
            publisher = await self.ctx.connect(version=5, name=f"publisher {number}")
            await self.publish(publisher)
            await self._look(f"before {harm.__name__} {number}")
            await self.publish(publisher)
            for _ in range(_MORE):
                if self.of == "messages" and harm is missing and not self.harmed and not self._front(self._files()):
                    await self.publish(publisher)
            await self.ctx.restart(lambda harm=harm: self._damage(harm))  # type: ignore[misc]
            publisher = await self.ctx.connect(version=5, name=f"publisher behind {number}")
            if self.of == "others" and await self._is_set_aside(publisher):
                publisher = await self.ctx.connect(version=5, name=f"publisher behind {number}, mended")
            if number % 2:
                await self.publish(publisher)
            with self.ctx.own_point():  # a queue that was served before the damage, and is not now
                await self._look(f"behind {harm.__name__} {number}")
            if self.was_hit:
                notes = (await ask(self.ctx, publisher, self.queue, "stats"))["storage_notes"]
                self.ctx.must(notes > 0, f"expected the damage to be reported in storage_notes; seen {notes}")
            await self.ctx.restart()
            await self._look(f"after the next restart, {number}")


def _life(slug: str, of: str, *harms: Harm, clauses: tuple[str, ...], mutant: str, **settings: Any) -> CaseFunction:
    async def life(ctx: CaseContext) -> None:
        await _DamagedLife(ctx, settings, harms, of).live()

    names = ", ".join(harm.__name__.replace("_", " ") for harm in dict.fromkeys(harms))
    which = "that grows with neither" if of == "others" else f"of {of}"
    life.__doc__ = f"""Damage costs what was in the damaged bytes, and nothing else ({slug}).

    A queue with two groups is published to, and settled, each step confirmed and its bytes noted. The broker is killed,
    a file {which} is damaged ({names}),
    and the broker is started: what is not in those bytes comes, as it was published, in order, once; what was settled
    behind damage may come again. The loss of messages is told in storage_notes. A queue that cannot be read as a whole
    is refused, and is all there once the file is mended. What is published then comes, too, and the next restart
    changes nothing.
    """
    return case(
        f"queue/damage/{slug}",
        clauses=clauses,
        requires=("queues", "restart", "data_dir"),
        mutant=mutant,
        near_miss="queue-one-batch-per-message",
        settings=SETTINGS,
        together=True,
        limit_s=_LIMIT_S,
    )(life)


torn = _life(
    "torn-ends",
    "messages",
    *(cut, zeros_behind, garbage_behind, half_a_record_behind, cut),
    clauses=("Q-DURA-12",),
    mutant="storage-torn-end-refused",
    partitions=1,
)
within = _life(
    "within",
    "messages",
    *(flip, zeros_within, flip, cut, zeros_within),
    clauses=("Q-DURA-12", "Q-DURA-17"),
    mutant="storage-middle-cut-like-a-tail",
    partitions=1,
    compression="zstd",
)
gone = _life(
    "segments-gone",
    "messages",
    *(missing, empty, missing, cut),
    clauses=("Q-DURA-17",),
    mutant="storage-front-not-missed",
    partitions=2,
)
settlements = _life(
    "settlements",
    "settlements",
    *(cut, flip, garbage_behind, empty, zeros_behind),
    clauses=("Q-DURA-12",),
    mutant="storage-group-damage-refused",
    partitions=2,
)
others = _life(
    "others",
    "others",
    *(cut, missing, flip, empty, zeros_within, cut, missing),
    clauses=("Q-DURA-16",),
    mutant="storage-unreadable-queue-tidied",
    partitions=2,
)


@case(
    "queue/damage/a-group-without-its-log",
    clauses=("Q-DURA-20", "Q-DURA-08"),
    requires=("queues", "restart", "data_dir"),
    mutant="storage-group-without-a-log-is-deleted",
    near_miss="queue-one-batch-per-message",
    settings=SETTINGS,
    together=True,
    limit_s=_LIMIT_S,
)
async def without_log(ctx: CaseContext) -> None:
    """A group whose file is gone keeps its place: what it has not settled is there for it, whatever others settle.

    Two groups read a queue of many small segments. One settles a message, and the files that grow by that are noted;
    the other settles half. The broker is killed, the file of the first group is removed, and the broker is started: it
    tells that in storage_notes. The second group settles all there is, and the first comes back: it gets what it has
    not settled, in order; the one that it had settled may come again.
    """
    queue = new_queue(ctx)
    watch = Watch(ctx.data_dir, queue)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, partitions=1)
    slow = await consume(ctx, queue, group="slow", name="slow", prefetch="1")
    wanted = [b"%03d" % number + _FILLING * 5 for number in range(_MANY)]
    for payload in wanted:
        await client.publish(f"$queue/{queue}", payload, qos=1)
    (first,) = await deliveries(slow, at_least=1)
    watch.begin()
    await settle(ctx, slow, queue, "ack", first)
    (path,) = {path for path in watch.files_of(watch.step()) if _FILLING not in path.read_bytes()}
    await slow.disconnect()
    fast = await consume(ctx, queue, group="fast", name="fast")
    await settle_together(ctx, fast, queue, (await deliveries(fast, at_least=_MANY))[: _MANY // 2])
    await ctx.restart(path.unlink)
    client = await ctx.connect(version=5, name="client after the damage")
    notes = (await ask(ctx, client, queue, "stats"))["storage_notes"]
    ctx.must(notes > 0, f"expected the missing file to be reported in storage_notes; seen {notes}")
    fast = await consume(ctx, queue, group="fast", name="fast after the damage")
    await settle_together(ctx, fast, queue, await deliveries(fast, at_least=_MANY - _MANY // 2))
    await ctx.restart()
    slow = await consume(ctx, queue, group="slow", name="slow after the damage")
    found = [each.payload for each in await deliveries(slow, at_least=_MANY - 1)]
    ctx.must(
        found[-_MANY + 1 :] == wanted[1:] and found[: -_MANY + 1] in ([], wanted[:1]),
        f"slow: expected the messages from 1 to {_MANY - 1}; seen {[payload[:3] for payload in found]}",
    )


@case(
    "queue/damage/first-bytes",
    clauses=("Q-DURA-12", "Q-DURA-17"),
    requires=("queues", "restart", "data_dir"),
    mutant="storage-long-batch-ends-the-log",
    near_miss="queue-one-batch-per-message",
    settings=SETTINGS,
    together=True,
    limit_s=_LIMIT_S,
)
async def first_bytes(ctx: CaseContext) -> None:
    """Whichever of the first bytes of a write is damaged, that write is lost, and what stands behind it comes.

    Each partition of a queue gets four messages, each confirmed before the next, and their bytes are noted. The broker
    is killed. A bit of one of the first 48 bytes of the first or second write is flipped, in each partition another
    one; in six further partitions the second write becomes zeros, and the last one is cut. The broker is started: every
    other message comes, in order, and nothing else; the loss is told in storage_notes.
    """
    queue, partitions = new_queue(ctx), _FIRST_BYTES + _TORN
    watch = Watch(ctx.data_dir, queue)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, partitions=partitions)
    for number in range(_WRITES):
        watch.begin()
        packets = [
            Publish(
                topic=f"$queue/{queue}",
                payload=b"%d in %d" % (number, partition) + _FILLING,
                qos=1,
                packet_id=client.next_packet_id(),
                properties=Properties(user_property=(("partition", str(partition)),)),
            )
            for partition in range(partitions)
        ]
        await accepted(ctx, client, packets)
        watch.step()
    wanted = {partition: list(range(_WRITES)) for partition in range(partitions)}

    def damage() -> None:
        for path in watch.files_of(0):
            data = bytearray(path.read_bytes())
            named = re.search(rb"0 in (\d+)\.", data)
            if named is None:
                continue  # it holds no messages
            partition = int(named[1])
            if partition < _FIRST_BYTES:
                hit = partition // 3 % 2
                data[watch.span(hit, path).start + partition] ^= 1
                lost = [hit]
            else:
                within, last = watch.span(1, path), watch.span(_WRITES - 1, path)
                data[within.start : within.stop] = bytes(len(within))
                del data[last.start + 1 + (partition - _FIRST_BYTES) * 20 :]
                lost = [1, _WRITES - 1]
            wanted[partition] = [number for number in wanted[partition] if number not in lost]
            path.write_bytes(data)

    await ctx.restart(damage)
    fewest = sum(map(len, wanted.values()))
    ctx.must(fewest < partitions * _WRITES, "expected files that grow by the payloads of what is published")
    consumer = await consume(ctx, queue, group="reader", name="reader", receive_maximum=1_000)
    seen: dict[int, list[int]] = {partition: [] for partition in range(partitions)}
    for delivery in await deliveries(consumer, at_least=fewest):
        partition = int(property_of(ctx, delivery, "partition"))
        number = int(delivery.payload[:1])
        ctx.must(
            delivery.payload == b"%d in %d" % (number, partition) + _FILLING,
            f"reader: expected what was published to partition {partition}; seen {delivery.payload[:20]!r}",
        )
        seen[partition].append(number)
    wrong = {partition: seen[partition] for partition in seen if seen[partition] != wanted[partition]}
    ctx.must(not wrong, f"reader: expected { ({each: wanted[each] for each in wrong}) }; seen {wrong}")
    client = await ctx.connect(version=5, name="client after the damage")
    notes = (await ask(ctx, client, queue, "stats"))["storage_notes"]
    ctx.must(notes >= partitions, f"expected the damage to be reported in storage_notes; seen {notes}")
