"""What an AMQP case works with, and its decorator."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec

from assay.conformance.amqp091.client import CAPABILITIES, AmqpConnection, Channel
from assay.conformance.arrival import soon
from assay.conformance.case import DEFAULT_LIMIT_S, CaseContext, CaseFunction, Level, case
from assay.conformance.outcome import CaseFailureError, TargetUnreachableError
from assay.conformance.rules import Incident, StepFailureError
from assay.conformance.targets import Damage, unharmed
from assay.conformance.wire.amqp091 import CONSTANTS, Arrival, Method, is_hard_error

JUDGED_ON = "reference-amqp091"
"""The target whose broker is broken to prove these cases."""
AmqpCaseFunction = Callable[["AmqpContext"], Awaitable[None]]


def amqp_case(
    case_id: str,
    *,
    clauses: tuple[str, ...],
    level: Level = "MUST",
    requires: tuple[str, ...] = (),
    mutant: str = "",
    near_miss: str = "",
    kills: tuple[str, ...] = (),
    settings: dict[str, Any] | None = None,
    together: bool = False,
    limit_s: float = DEFAULT_LIMIT_S,
) -> Callable[[AmqpCaseFunction], AmqpCaseFunction]:
    """Register a case ``amqp091/<case_id>``; see :func:`assay.conformance.case.case`."""
    register = case(
        f"amqp091/{case_id}",
        clauses=clauses,
        level=level,
        requires=requires,
        mutant=mutant,
        near_miss=near_miss,
        kills=kills,
        settings=settings,
        judged_on=JUDGED_ON,
        together=together,
        limit_s=limit_s,
    )

    def decorate(function: AmqpCaseFunction) -> AmqpCaseFunction:
        register(cast(CaseFunction, function))
        return function

    return decorate


def is_among(outcome: str, variants: Iterable[str]) -> bool:
    """Whether one of the registry's variants describes the outcome; ``<level> any`` is any code of that level."""
    level, _, code = outcome.partition(" ")
    for variant in variants:
        if outcome == variant:
            return True
        if variant == f"{level} any" and code.isdigit():
            number = int(code)
            return number in CONSTANTS and (level == "connection" or not is_hard_error(number))
    return False


class AmqpContext(CaseContext):
    """Connections, names nobody else uses, checks, and the transcript, for AMQP."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._amqp: list[AmqpConnection] = []
        self._queues: dict[str, None] = {}
        self._exchanges: dict[str, None] = {}
        """Names that the case declared, to be deleted behind it."""
        self._confirmed: dict[Channel, set[int]] = {}

    # Names

    def queue_name(self) -> str:
        """A fresh name, with the characters that the standard allows."""
        self._names += 1
        return f"assay.{self._token}.q{self._names}"

    def exchange_name(self) -> str:
        self._names += 1
        return f"assay.{self._token}.x{self._names}"

    def note_request(self, method: Method) -> None:
        """Called for every method sent: what is declared must be deleted behind the case."""
        if method.name == "queue.declare" and not method["passive"]:
            self._queues[method["queue"]] = None
        elif method.name == "exchange.declare" and not method["passive"]:
            self._exchanges[method["exchange"]] = None

    # Connections

    async def open_socket(self, *, name: str = "") -> AmqpConnection:
        """A network connection without a byte sent. Raises :class:`TargetUnreachableError`."""
        connection = AmqpConnection(self, name or f"c{len(self._amqp) + 1}")
        endpoint = self.endpoint
        context = None if endpoint.tls is None else endpoint.tls.context()
        begin = asyncio.get_running_loop().create_connection
        try:
            await self.patiently(
                lambda: begin(
                    lambda: connection, endpoint.host, endpoint.port, ssl=context, server_hostname=endpoint.server_name
                ),
                looks_again=False,
            )
        except OSError as error:
            message = f"cannot connect to {endpoint.host}:{endpoint.port}: {error or type(error).__name__}"
            raise TargetUnreachableError(message) from error
        self._amqp.append(connection)
        return connection

    async def client(
        self,
        *,
        name: str = "",
        client_capabilities: Mapping[str, Any] = CAPABILITIES,
        vhost: str = "/",
        channel_max: int | None = None,
        frame_max: int | None = None,
        heartbeat_s: int = 0,
        response: bytes | None = None,
    ) -> AmqpConnection:
        """A connection that is open; ``response``: credentials of another user than the endpoint's."""
        connection = await self.open_socket(name=name)
        began = time.monotonic()
        await connection.handshake(
            vhost=vhost,
            client_capabilities=client_capabilities,
            channel_max=channel_max,
            frame_max=frame_max,
            heartbeat_s=heartbeat_s,
            response=response,
        )
        self.greeting_s = max(self.greeting_s, time.monotonic() - began)
        return connection

    async def channel(self, *, name: str = "", **how: Any) -> Channel:
        """An open channel on a connection of its own."""
        return await (await self.client(name=name, **how)).channel()

    @property
    def connected(self) -> bool:
        return bool(self._amqp)

    @property
    def disturbed(self) -> bool:
        return self.sent_raw or any(connection.closed for connection in self._amqp)

    def other_reasons(self) -> list[Incident]:
        return []

    async def read_on(self) -> None:
        """Nothing overtakes in AMQP."""

    async def measure_a_delivery(self) -> None:
        """Of a case that has failed, and depends on timers: does the broker take long over its plainest message?"""
        recorded = len(self.transcript.lines)
        try:
            async with self.time_limit(self.limit_s):
                channel = await self.channel(name="itself")
                queue = await channel.queue()
                await channel.consume(queue, no_ack=True)
                began = time.monotonic()
                channel.publish("", queue, b"itself")
                await channel.delivery()
                self.delivery_s = time.monotonic() - began
        except (CaseFailureError, TargetUnreachableError, TimeoutError, OSError) as error:
            self.note(f"how long a message takes could not be told: {error}")
        finally:
            del self.transcript.lines[recorded:]

    async def restart(self, damage: Damage = unharmed) -> None:
        """End the broker, and start it again on its data; the connections are lost."""
        for connection in self._amqp:
            connection.left = True
        await super().restart(damage)
        for connection in self._amqp:
            connection.close()

    def close(self) -> None:
        super().close()
        for connection in self._amqp:
            connection.close()

    def needs_a_port_of_its_own(self) -> None:
        """End the case as unsupported where the port also speaks MQTT: what is not AMQP's is taken for that."""
        if self.capabilities.get("amqp091_shares_its_port"):
            self.unsupported("its port speaks MQTT as well: bytes that are not those of AMQP may be taken for that")

    async def delete_leftovers(self) -> None:
        """Delete what the case declared, whatever became of it."""
        if not self._queues and not self._exchanges:
            return
        for connection in self._amqp:
            connection.close()
        cleaner = await self.client(name="cleaner")
        for name, kind in [*((q, "queue") for q in self._queues), *((x, "exchange") for x in self._exchanges)]:
            if name.startswith("assay."):
                channel = await cleaner.channel()
                with contextlib.suppress(CaseFailureError):
                    await channel.call(f"{kind}.delete", **{kind: name})
        await cleaner.disconnect()

    # Checks

    @contextlib.contextmanager
    def own_point(self) -> Iterator[None]:
        """A step that fails in here is what the case is about, unless a case about nothing else fails on it, too."""
        try:
            yield
        except StepFailureError as error:
            raise StepFailureError(msgspec.structs.replace(error.incident, soft=True)) from error

    def allow(self, statement: str, outcome: str, *more: str, what: str = "") -> None:
        """The outcome of a request must be one of the variants of this rule in the registry (or of ``more``)."""
        variants = (*variants_of(statement), *more)
        wanted = f"{' or '.join(variants)} ({statement})" + (f" for {what}" if what else "")
        self.must(is_among(outcome, variants), f"expected {wanted}; seen {outcome}")

    def prefer(self, statement: str, outcome: str) -> None:
        """The same, where the first variant is what the specification says: the others are reported, not failed."""
        self.allow(statement, outcome)
        first = variants_of(statement)[0]
        self.should(outcome == first, f"{statement}: {first} is what the specification says; seen {outcome}")

    def keeps(self, sent: Mapping[str, Any], seen: Mapping[str, Any]) -> None:
        """Properties must come out as they went in, and more may be added, within the headers too."""
        for name, value in sent.items():
            known = seen.get(name)
            if name == "headers" and isinstance(known, Mapping):
                known = {header: known[header] for header in value if header in known}
            self.must(known == value, f"expected the property {name} as {value!r}; seen {known!r}")

    async def argument_outcome(self, name: str, value: Any) -> str:
        """How declaring a queue with this argument ends, on a connection of its own."""
        client = await self.client(name="asks")
        channel = await client.channel()
        durable = name == "x-queue-type"
        outcome = await channel.outcome(
            "queue.declare", queue=self.queue_name(), durable=durable, exclusive=not durable, arguments={name: value}
        )
        client.close()
        return outcome

    async def knows_argument(self, name: str, bad: Any) -> bool:
        """Whether the server looks at an argument: it refuses a value that makes no sense."""
        return await self.argument_outcome(name, bad) != "ok"

    async def needs_argument(self, name: str, bad: Any) -> None:
        """End the case as unsupported where the server does not know the argument."""
        if not await self.knows_argument(name, bad):
            self.unsupported(f"the argument {name} is not known: {bad!r} is taken for it")

    async def queue_with(self, channel: Channel, arguments: Mapping[str, Any], name: str | None = None) -> str:
        """An exclusive queue with these arguments, which must be understood as a whole; its name.

        A server may know some arguments and refuse others: the case ends as unsupported then.
        """
        name = name or self.queue_name()
        outcome = await channel.outcome("queue.declare", queue=name, exclusive=True, arguments=arguments)
        if outcome != "ok":
            self.unsupported(f"a queue with {', '.join(arguments)} is answered by {outcome}")
        return name

    def soon(self) -> Callable[[], Awaitable[bool]]:
        """As :func:`assay.conformance.arrival.soon`."""
        return soon(self)

    async def becomes(self, connection: AmqpConnection, request: str, wanted: str, **fields: Any) -> None:
        """A request, asked again and again on channels of this connection, must soon end so."""
        soon = self.soon()
        while (outcome := await (await connection.channel()).outcome(request, **fields)) != wanted:
            self.must(await soon(), f"expected {request} to end with {wanted} soon; seen {outcome}")

    async def all_of(self, channel: Channel, wanted: set[bytes], seen: Iterable[bytes]) -> None:
        """Deliveries must go on until all these messages have come."""
        left = wanted - set(seen)
        while left:
            event = await channel.delivery()
            self.must(event.body in left, f"expected one of {sorted(left)}; seen {event.body!r}")
            left.discard(event.body)

    async def either(self, *channels: Channel) -> Channel:
        """The channel to which the next delivery comes; it is taken."""
        tasks = {asyncio.ensure_future(channel.delivery()): channel for channel in channels}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            first = next(iter(done))
            first.result()
            return tasks[first]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def confirmed_on(self, channel: Channel) -> set[int]:
        """Tags that were confirmed on a channel."""
        return self._confirmed.setdefault(channel, set())

    def note_confirm(self, channel: Channel, event: Arrival) -> set[int]:
        """The publishes that a confirm is for; it must name one that was published and is not confirmed yet."""
        known = self.confirmed_on(channel)
        multiple = event["multiple"]
        tags = {tag for tag in range(1, event.tag + 1) if tag not in known} if multiple else {event.tag} - known
        self.must(
            bool(tags) and 1 <= event.tag <= channel.published,
            f"{channel.name}: expected confirms for tags up to {channel.published}, each once; seen tag {event.tag}",
        )
        known |= tags
        return tags


def variants_of(statement: str) -> tuple[str, ...]:
    """What the registry lets pass. Raises :class:`KeyError` for a rule without variants: that would be a mistake."""
    from assay.conformance.registry import load_statements

    found = load_statements("amqp091")[statement].variants
    if not found:
        raise KeyError(statement)
    return found
