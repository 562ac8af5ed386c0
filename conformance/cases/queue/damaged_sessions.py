"""Lives of sessions and retained messages whose files are damaged while the broker is dead.

As in ``queue/damage``: what is not in the damaged bytes is there; what is in them may be gone, or be as it was before.
"""

from __future__ import annotations

from pathlib import Path

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.damaged_files import (
    Harm,
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
from assay.conformance.cases.mqtt5.support import publishing
from assay.conformance.cases.queue.support import deliveries
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Subscription

_LIMIT_S = 30.0
_LASTING = Properties(session_expiry_interval=100_000)
_CLIENTS, _TOPICS, _STEPS = 5, 6, 14
_SETTINGS = {"sessions": {"segment_bytes": 4_096}}
_HARMS = (cut, zeros_behind, flip, flip, garbage_behind, zeros_within, half_a_record_behind, empty, missing)
_AIMED = 2
"""The round that damages what has a retained message behind it in its file."""


class _Client:
    """A session: what waits for it, by the step that brought it."""

    def __init__(self, name: str, client_id: str, topic: str) -> None:
        self.name, self.client_id, self.topic = name, client_id, topic
        self.waiting: dict[bytes, int] = {}
        self.taken: dict[bytes, int] = {}
        """What it has acknowledged, by the step behind which nobody knows of it any more."""
        self.steps: list[int] = []
        """That made the session, and changed it since: its subscription is in the bytes of the first, or of any."""
        self.known = False


class _Life:
    def __init__(self, ctx: CaseContext) -> None:
        self.ctx = ctx
        self.rng = ctx.rng
        self.watch = Watch(ctx.data_dir)
        self.clients = [
            _Client(f"client {number}", ctx.client_id(), ctx.topic(f"to/{number}")) for number in range(_CLIENTS)
        ]
        self.retained: dict[str, list[tuple[int, bytes]]] = {
            ctx.topic(f"kept/{number}"): [(-1, b"")] for number in range(_TOPICS)
        }
        """Topic to all it ever held, with the step of it."""
        self.lost: set[int] = set()
        """Steps that may be undone."""
        self.written = 0

    # Steps

    def _payload(self) -> bytes:
        self.written += 1
        return b"%d " % self.written + b"." * self.rng.choice((0, 30, 400))

    async def step(self, publisher: Connection) -> None:
        client, kind = self.rng.choice(self.clients), self.rng.random()
        if not client.known:
            await self._begin(client)
        elif kind < 0.5:
            payload = self._payload()
            self.watch.begin()
            await publisher.publish(client.topic, payload, qos=1)
            client.waiting[payload] = self.watch.step()
        else:
            await self._retain(publisher, may_remove=kind < 0.6)

    async def _begin(self, client: _Client) -> None:
        """Make its session; one that there was ends."""
        self.watch.begin()
        await self._leave(await self._come(client, clean=True, subscribe=True))
        client.known = True
        client.steps = [self.watch.step()]

    async def _retain(self, publisher: Connection, *, may_remove: bool = False) -> None:
        topic = self.rng.choice(list(self.retained))
        # Where there is nothing to remove a broker may write nothing, and nobody knows what that depends on.
        payload = b"" if may_remove and self.retained[topic][-1][1] else self._payload()
        self.watch.begin()
        await publisher.publish(topic, payload, qos=1, retain=True)
        self.retained[topic].append((self.watch.step(), payload))

    async def _come(self, client: _Client, *, clean: bool = False, subscribe: bool = False) -> Connection:
        connection = await self.ctx.connect(
            version=5, name=client.name, client_id=client.client_id, clean=clean, properties=_LASTING
        )
        if subscribe:
            await connection.subscribe(Subscription(filter=client.topic, qos=1))
        return connection

    async def _leave(self, connection: Connection) -> None:
        await connection.disconnect()

    # What is damaged

    def _damage(self, harm: Harm, *, is_aimed: bool) -> None:
        files = [path for path, size in self.watch.sizes().items() if size and self._is_of_sessions(path)]
        logs = sorted(path for path in files if any(self.watch.grown(step, path) for step in self._steps()))
        if not logs:
            return
        if is_aimed and (followed := self._followed()):
            path, within = self.rng.choice(followed)
            hurt = flip(path, self.rng, within)
        else:
            path = self.rng.choice((logs[-1], self.rng.choice(logs)))
            hurt = harm(path, self.rng)
        self.ctx.note(f"{path.relative_to(self.ctx.data_dir)}: {hurt.text}")
        known = {path for path in self.watch.sizes() if path.exists()}
        for step in self._steps():
            # A file that was tidied away has left what it held nobody knows where.
            if self.watch.is_hit(step, path, hurt) or not self.watch.files_of(step) <= known | {path}:
                self.lost.add(step)

    def _followed(self) -> list[tuple[Path, range]]:
        """Bytes behind which, in the same file, is what a topic holds."""
        newest = [held[-1][0] for held in self.retained.values() if held[-1][1]]
        return [found for found in self.watch.with_steps_behind(newest) if self._is_of_sessions(found[0])]

    def _is_of_sessions(self, path: Path) -> bool:
        return "queues" not in path.relative_to(self.ctx.data_dir).parts

    def _steps(self) -> list[int]:
        owned = [step for client in self.clients for step in client.steps]
        owned += [step for client in self.clients for step in (*client.waiting.values(), *client.taken.values())]
        return owned + [step for held in self.retained.values() for step, _payload in held if step >= 0]

    async def _make_certain(self) -> None:
        """Sessions of which nobody knows any more in which bytes they are end, and are made anew."""
        for client in self.clients:
            if client.known and not all(map(self.watch.is_certain, client.steps)):
                await self._begin(client)

    # What must be there

    async def look(self, when: str) -> None:
        """What was seen is what is there from now on: after the next restart it must be the same."""
        reader = await self.ctx.connect(version=5, name=f"reader {when}")
        for client in self.clients:
            if client.known:
                await self._look_at(client, reader, when)
        # No clause says how soon retained messages come: with this one the others have had their time.
        marker = self.ctx.topic("marker")
        await reader.publish(marker, when.encode(), qos=1, retain=True)
        await reader.subscribe(Subscription(filter=self.ctx.topic("kept/#"), qos=0), Subscription(filter=marker, qos=0))
        certain = sum(bool(held[-1][1]) and held[-1][0] not in self.lost for held in self.retained.values())
        seen = {packet.topic: packet.payload for packet in await deliveries(reader, at_least=certain + 1)}
        seen.pop(marker, None)
        for topic, held in self.retained.items():
            wanted = {held[-1][1]}
            if held[-1][0] in self.lost:
                wanted |= {payload for _step, payload in held}
            found = seen.get(topic, b"")
            names = sorted(map(_short, wanted))
            self.ctx.must(found in wanted, f"{reader.name}: expected one of {names} on {topic}; seen {found[:9]!r}")
            if found != held[-1][1]:
                held.append(next((step, payload) for step, payload in reversed(held) if payload == found))
        self.ctx.must(
            seen.keys() <= self.retained.keys(), f"{reader.name}: expected no topic but those; seen {sorted(seen)}"
        )
        await reader.disconnect()

    async def _look_at(self, client: _Client, reader: Connection, when: str) -> None:
        self.watch.begin()
        connection = await self._come(client)
        hit = not self.lost.isdisjoint(client.steps)
        present = connection.connack.session_present
        self.ctx.must(present or hit, f"{client.name} {when}: expected Session Present 1; seen 0")
        must = {payload for payload, step in client.waiting.items() if present and step not in self.lost}
        # That it was acknowledged is in a damaged file: then it waits, as it did.
        again = {payload for payload, step in client.taken.items() if step in self.lost}
        if not present:
            client.steps = []
        if not present or hit:
            await connection.subscribe(Subscription(filter=client.topic, qos=1))
        # Behind it on its topic: whatever waits for the client comes before it.
        last = f"last {when}".encode()
        # A server may acknowledge it once everybody has what came before.
        async with publishing(reader, client.topic, last, qos=1):
            came = await deliveries(connection, at_least=len(must) + 1)
            # Of what may come some came in its place: it would wait for the next look.
            while all(one.payload != last for one in came) and (more := await deliveries(connection, at_least=1)):
                came += more
        if all(one.payload != last for one in came):
            self.ctx.fail(f"{client.name} {when}: expected to be subscribed to {client.topic}; seen no message of it")
        found = [one for one in came if one.payload != last]
        seen = [packet.payload for packet in found if packet.topic == client.topic]
        self.ctx.must(
            len(seen) == len(set(seen)) == len(found) and must <= set(seen) <= client.waiting.keys() | again,
            f"{client.name} {when}: expected {sorted(map(_short, must))}, each once; seen {sorted(map(_short, seen))}",
        )
        taken, client.waiting = client.waiting, {}
        await self._leave(connection)
        client.steps.append(self.watch.step())
        client.taken |= dict.fromkeys(taken, client.steps[-1])

    async def live(self) -> None:
        for number, harm in enumerate(_HARMS):
            publisher = await self.ctx.connect(version=5, name=f"publisher {number}")
            for _ in range(_STEPS):
                await self.step(publisher)
            is_aimed, more = number == _AIMED, _STEPS
            while is_aimed and more and not self._followed():
                await self._retain(publisher)
                more -= 1
            await self.ctx.restart(lambda harm=harm, it=is_aimed: self._damage(harm, is_aimed=it))  # type: ignore[misc]
            await self.look(f"behind {harm.__name__} {number}")
            self.lost.clear()
            publisher = await self.ctx.connect(version=5, name=f"publisher behind {number}")
            for _ in range(3):
                await self.step(publisher)
            await self.ctx.restart()
            await self.look(f"after the next restart, {number}")
            await self._make_certain()


def _short(payload: bytes) -> str:
    return payload[:9].decode()


@case(
    "queue/damage/sessions",
    clauses=("Q-DURA-19",),
    requires=("queues", "restart", "data_dir", "retain"),
    mutant="storage-middle-cut-like-a-tail",
    near_miss="restart-record-by-record",
    settings=_SETTINGS,
    limit_s=_LIMIT_S,
)
async def sessions(ctx: CaseContext) -> None:
    """The broker starts without the sessions and retained messages in damaged bytes, and has all others.

    Sessions are made, messages wait for them, retained messages come and go, each step confirmed and its bytes noted.
    The broker is killed, one of the files that grew is damaged, once in bytes behind which its file holds a retained
    message, and the broker is started: each session, message and retained message that is not in the damaged bytes is
    there; of the others a retained message may be an older one. What was seen then is still so after the next restart.
    """
    await _Life(ctx).live()
