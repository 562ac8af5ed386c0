"""Performs a life of queues over HTTP, and asks the oracle of queues about all that comes.

A consumer is given messages while it polls, and never between: what may be on its way, the oracle knows by the window
of its member, which is as wide as the poll that waits. Whatever must have come is asked for by everybody in its group.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import msgspec

from assay.conformance.explore.control import connected
from assay.conformance.explore.http.requests import HTTP_RICH, OUTCOMES, as_packet, message_body, route_of
from assay.conformance.explore.http.rules import HttpRule
from assay.conformance.explore.queues import life as plan
from assay.conformance.explore.queues.asking import Producer
from assay.conformance.explore.queues.books import violation
from assay.conformance.explore.queues.clients import QueueClient
from assay.conformance.explore.queues.deliveries import NUMBER
from assay.conformance.explore.queues.player import QueuePlayer
from assay.conformance.explore.queues.requests import message_of
from assay.conformance.explore.queues.rules import QueueRule
from assay.conformance.explore.queues.state import Copy, Group, Member, Message, Queue
from assay.conformance.explore.rules import ViolationError
from assay.conformance.explore.sockets import Wire
from assay.conformance.targets import Endpoint
from assay.conformance.targets.faces import face_endpoint
from assay.conformance.wire.http import HTTP_11, AnswerReader, HttpAnswer, MalformedHttpError, encode_request

_API = "/api/v1/queues"
_SESSION_S = 86_400
"""Of consumers that stay away, longer than clocks move while they are there; those of dead letters have the default."""
_IDLE_S = 1.0
"""A connection that rests for longer may be ended by its server at any time: the next request goes on a new one."""
_WAIT_S = 50.0
_AGAIN_S = 0.05
_END_S = 3.0
_AUDIT = 1_000
_MANY = 1_000
_FIRST_REFUSAL, _PARTLY = 300, 207
Heard = Callable[[HttpAnswer], None]


def _accused(rule: HttpRule, text: str, *clauses: str, waited: bool = False) -> ViolationError:
    return ViolationError(rule, HTTP_11, text, clauses, waited=waited)


@dataclass(eq=False, kw_only=True)
class HttpClient(QueueClient):
    asked: deque[tuple[str, Heard | None]] = field(default_factory=deque)
    """Requests without an answer, and who is to hear it; None: it is kept."""
    kept: deque[HttpAnswer | None] = field(default_factory=deque)
    """None: the server ended the connection behind another answer, as it may, and nobody knows."""
    closing: bool = False
    """It has said that it will."""
    used_at: float = 0.0
    polls: bool = False
    leaves: bool = False
    """It has ended its side, and awaits the end of the other."""


class HttpPlayer(QueuePlayer):
    """Plays lives of queues over HTTP, one after the other, on one broker."""

    def _begin(self, life: plan.QueueLife) -> None:
        super()._begin(life)
        self._receipts: dict[Copy, list[tuple[int, str]]] = {}
        """Of the deliveries of each that were read, with their counts."""
        self._auditors: dict[int, tuple[int, plan.GroupPlan]] = {}
        self._wanted: set[Group] = set()
        """Somebody has polled: what must come to these groups is asked for."""

    # Connections, requests, answers

    @property
    def _place(self) -> Endpoint:
        return face_endpoint(self.endpoint, str(self.capabilities["http_url"]))

    def connect(self, name: str, receive_maximum: int = 0) -> HttpClient:
        client = HttpClient(
            name=f"{name}.{next(self._names)}",
            version=HTTP_11,
            sock=connected(self._place),
            decoder=AnswerReader(),
            client_id=f"{self.token}{name}",
            key=name,
            used_at=time.monotonic(),
        )
        self.clients[name] = client
        self.watch(client)
        return client

    def _rested(self, name: str) -> HttpClient:
        """Its connection, or a new one in place of one that its server may be about to end."""
        client = self.client(name)
        assert isinstance(client, HttpClient)
        if not client.asked and (client.closing or time.monotonic() - client.used_at > _IDLE_S):
            self.drop(client)
            client = self._in_place_of(client)
        return client

    def _in_place_of(self, older: HttpClient) -> HttpClient:
        client = self.connect(older.key)
        client.member, client.consumer = older.member, older.consumer
        return client

    def _say(self, name: str, method: str, path: str, body: Any = None, heard: Heard | None = None) -> HttpClient:
        client = self._rested(name)
        place = self._place
        headers = {"host": f"{place.host}:{place.port}", **place.basic}
        content = None if body is None else msgspec.json.encode(body)
        if content is not None:
            headers["content-type"] = "application/json"
        assert isinstance(client.decoder, AnswerReader)
        client.decoder.expect(method)
        client.asked.append((f"{method} {path}", heard))
        client.used_at = time.monotonic()
        self.send(client, encode_request(method, path, headers, content))
        return client

    def _hear(self, client: HttpClient) -> HttpAnswer | None:
        """The next answer that was kept; None: nobody waits for it."""
        if self.unheard:
            return None
        what = client.asked[0][0] if client.asked else ""
        self.await_(
            lambda: bool(client.kept),
            lambda: _accused(HttpRule.UNANSWERED, f"{client.name}: {what} is not answered", waited=True),
        )
        return client.kept.popleft()

    def _ask(self, name: str, method: str, path: str, body: Any = None) -> HttpAnswer | None:
        return self._hear(self._say(name, method, path, body))

    def arrived(self, wire: Wire, data: bytes) -> None:
        assert isinstance(wire, HttpClient)
        assert isinstance(wire.decoder, AnswerReader)
        self.log.append((time.perf_counter_ns() - self._began_ns, wire.name, "recv", data, wire.version))
        self.oracle.now = self.now
        wire.used_at = time.monotonic()
        try:
            for answer in wire.decoder.feed(data):
                if not wire.asked:
                    raise _accused(HttpRule.FORM, f"{wire.name}: an answer that nobody asked for")
                _, heard = wire.asked.popleft()
                wire.closing = answer.head.header("connection").lower() == "close"
                if heard is None:
                    wire.kept.append(answer)
                else:
                    heard(answer)
        except MalformedHttpError as error:
            raise _accused(HttpRule.FORM, f"{wire.name}: {error}") from error

    def ended_by_broker(self, wire: Wire) -> None:
        assert isinstance(wire, HttpClient)
        self.drop(wire)
        if self.unheard or not self.is_current(wire) or wire.leaves:
            return
        if wire.closing:
            wire.kept += [None] * len(wire.asked)
            wire.asked.clear()
        if wire.asked:
            text = f"{wire.name}: the connection ends in place of an answer to {wire.asked[0][0]}"
            raise _accused(HttpRule.UNANSWERED, text)
        self._in_place_of(wire)

    def barrier(self, *clients: QueueClient) -> None:
        """Requests are answered one by one; what waits has been read when others are answered for a second time."""
        if any(isinstance(client, HttpClient) and client.polls for client in clients) and not self.unheard:
            for _ in range(2):
                self._ask("a", "GET", _API)

    # Administration

    def _admin(self, operation: str, request: dict[str, Any] | None = None) -> bool | None:
        if operation == "queue/create" and request is not None:
            request = {**request, "group": {**request.get("group", {}), "session_timeout_s": _SESSION_S}}
        method, path, body = route_of(operation, request)
        answer = self._ask("a", method, path, body)
        return None if answer is None else answer.head.status < _FIRST_REFUSAL

    def _figures(self, name: str, what: str = "stats") -> dict[str, Any]:
        path = f"{_API}/{name}/stats" if what == "stats" else f"/api/v1/{what}/stats?topic={name}"
        answer = self._ask("a", "GET", path)
        if answer is None or answer.head.status >= _FIRST_REFUSAL:
            raise violation(QueueRule.REQUEST, f"the figures of {name} are refused: {answer}")
        figures: dict[str, Any] = msgspec.json.decode(answer.body)
        return figures

    def _advance(self, seconds: int) -> None:
        """Who is silent for the session timeout of its queue is out, some time: it leaves before."""
        if self.capabilities.get("clock", False):
            for client in list(self.clients.values()):
                member = client.member
                if member is not None and (member.group.is_dead or seconds >= _SESSION_S):
                    self._leave(client.consumer, plan.Leaving.DISCONNECT)
        super()._advance(seconds)

    def _clean_up(self) -> None:
        for queue in self.oracle.queues if self._tidies else ():
            self._admin(f"queue/{queue.name}/delete")
            self._admin(f"queue/dlq%2F{queue.name}/delete")

    # Publishing

    def _burst(self, steps: Iterable[plan.Publish], *, together: bool = False) -> None:
        """One request each, none of which waits for another; ``together``: one for each client and queue."""
        requests: dict[Any, tuple[plan.Publish, Queue, list[plan.Publish]]] = {}
        for at, step in enumerate(steps):
            queue = self._queue(step.queue)
            key = (step.client, queue) if together else at
            requests.setdefault(key, (step, queue, []))[2].append(step)
        waiting = []
        for first, queue, some in requests.values():
            sent: list[tuple[Message, Callable[[bool | None], None]]] = []
            told = []
            for step in some:
                message, _ = message_of(step, queue, next(self._numbers), self.oracle.serial, self.token, HTTP_RICH)
                message.burst, message.client = self.oracle.round, step.client
                sent.append((message, self.oracle.publish(queue, message)))
                told.append(message_body(step, message))
            client = self._say(f"p{first.client}", "POST", f"{_API}/{queue.name}/messages", {"messages": told})
            waiting.append((client, sent))
        for client, sent in waiting:
            self._published(self._hear(client), sent)

    def _published(self, answer: HttpAnswer | None, sent: list[tuple[Message, Callable[[bool | None], None]]]) -> None:
        if answer is None:
            for _, answered in sent:
                answered(None)
            return
        numbers = [message.number for message, _ in sent]
        where = f"the answer with {answer.head.status} to a publish of {numbers}"
        try:
            results: list[dict[str, Any]] = msgspec.json.decode(answer.body)["results"]
            taken = ["error" not in each for each in results]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise _accused(HttpRule.RESULTS, f"{where} tells no results: {answer.body[:200]!r}") from error
        wanted = 200 if all(taken) else _PARTLY if any(taken) else 0
        if len(results) != len(sent) or (
            answer.head.status != wanted if wanted else answer.head.status < _FIRST_REFUSAL
        ):
            raise _accused(HttpRule.RESULTS, f"{where} has the results {results}")
        for (message, answered), result, is_taken in zip(sent, results, taken, strict=True):
            answered(is_taken)
            if not is_taken:
                continue
            if message.delay_s:
                message.delay_id = result.get("delay_id", "")
                self._delayed.append(message)
                if not message.delay_id:
                    raise violation(QueueRule.CANCEL, f"{where} tells no delay_id", "Q-DELAY-07")
                continue
            place = result.get("partition"), result.get("offset")
            if not isinstance(place[0], int) or not isinstance(place[1], int) or message.place not in (None, place):
                text = f"{where} tells {place} for message {message.number}, which is at {message.place}"
                raise _accused(HttpRule.PLACE, text)
            message.place = place[0], place[1]
            message.queue.places.setdefault(message.place, message)

    def _cancel(self, step: plan.Cancel) -> None:
        if not self._delayed:
            return
        message = self._delayed[step.which % len(self._delayed)]
        answered = self.oracle.cancel(message)
        path = f"{_API}/{message.queue.name}/delayed/{quote(message.delay_id, safe='')}"
        answer = self._ask("p0", "DELETE", path)
        answered(None if answer is None else answer.head.status < _FIRST_REFUSAL)

    # Consumers

    def _perform(self, step: plan.Step) -> None:
        if not isinstance(step, plan.Poll):
            super()._perform(step)
            return
        number = step.consumer % len(self._life.consumers)
        consumer = self._life.consumers[number]
        group_number = consumer.group % len(self._life.groups)
        self._poll_as(
            number, group_number, self._life.groups[group_number], consumer.prefetch, step.most, waits=step.waits
        )

    def _join_as(
        self, number: int, group_number: int, group: plan.GroupPlan, prefetch: int, receive_maximum: int
    ) -> None:
        """Of the audit."""
        self._auditors[number] = group_number, group
        self._poll_as(number, group_number, group, prefetch, _MANY)

    def _poll_as(
        self, number: int, group_number: int, group: plan.GroupPlan, prefetch: int, most: int, *, waits: bool = False
    ) -> None:
        queue = self._queue(group.queue)
        if group.dead:
            assert queue.letters is not None
            queue = queue.letters
        client = self._rested(f"c{number}")
        client.consumer = number
        if client.member is None:
            client.member = self.oracle.join(
                queue,
                f"g{group_number}",
                group,
                lambda made: Member(made, client.name, "", prefetch, 0, self.oracle.round),  # nobody says its id
                number,
            )
            client.member.receive_maximum = 0
        self._poll(client, client.member, most, _WAIT_S if waits else 0.0, prefetch)

    def _poll(self, client: HttpClient, member: Member, most: int, wait_s: float, prefetch: int = 0) -> None:
        """Ask for messages, unless it does so already; one that waits for long is answered when it is."""
        if client.polls:
            return
        group = member.group
        asked: dict[str, Any] = {
            "group": group.name,
            "consumer": client.client_id,
            "max_messages": most,
            "wait_s": wait_s,
        }
        asked["cursor"] = "latest" if group.plan.latest else "earliest"
        if group.plan.filter and not group.is_dead:
            asked["pattern"] = group.plan.filter
        if prefetch:
            asked["prefetch"] = prefetch
        client.polls = True
        member.receive_maximum = most
        self._wanted.add(group)
        path = f"{_API}/{self._name_of(group.queue)}/consume"
        self._say(client.key, "POST", path, asked, lambda answer: self._polled(client, member, most, answer))
        if wait_s > 1:
            self.barrier(client)
        else:
            self.await_(
                lambda: not client.polls,
                lambda: _accused(
                    HttpRule.UNANSWERED, f"{client.name}: a poll is not answered", "H-CONS-4", waited=True
                ),
            )

    @staticmethod
    def _name_of(queue: Queue) -> str:
        return queue.name if queue.source is None else f"dlq%2F{queue.source.name}"

    def _polled(self, client: HttpClient, member: Member, most: int, answer: HttpAnswer) -> None:
        client.polls = False
        where = f"{client.name}: a poll is answered with {answer.head.status}"
        try:
            messages = msgspec.json.decode(answer.body)["messages"] if answer.head.status == 200 else None
        except (msgspec.DecodeError, KeyError, TypeError):
            messages = None
        if messages is None:
            raise _accused(HttpRule.CONSUME, f"{where}: {answer.body[:200]!r}")
        if len(messages) > most:
            raise _accused(HttpRule.MOST, f"{where} and {len(messages)} messages, of {most} that were asked for")
        for told in messages:
            self._delivered(member, told)
        member.receive_maximum = 0

    def _delivered(self, member: Member, told: dict[str, Any]) -> None:
        number = told.get("headers", {}).get(NUMBER, "")
        if not number.isdecimal():
            raise violation(QueueRule.UNKNOWN, f"{member.name} is given {told}")
        known = member.group.queue.by_number.get(int(number), [])
        try:
            packet = as_packet(told, known[0].topic if known else "", is_strict=member.group.queue.is_strict)
            receipt, count, group = str(told["receipt"]), int(told["delivery_count"]), str(told["group"])
        except (KeyError, TypeError, ValueError) as error:
            raise _accused(HttpRule.TELLS, f"{member.name} is given {told}, which lacks {error}") from error
        message = self.oracle.delivered(member, packet, int(number))
        member.group.told = group
        if message is not None:
            self._receipts.setdefault(member.group.copies[message], []).append((count, receipt))

    def _leave(self, number: int, how: plan.Leaving) -> None:
        """Who leaves as it polls has gone before; and then says that it comes back no more."""
        number = number % len(self._life.consumers) if 0 <= number < _AUDIT - len(self.oracle.queues) else number
        client = self.clients.get(f"c{number}")
        if not isinstance(client, HttpClient) or client.member is None:
            return
        member = client.member
        if client.polls:
            self._go(client)
        self.oracle.leave(member)
        client.member = None
        group = member.group
        body = {"group": group.name, "consumer": client.client_id}
        if group.plan.filter and not group.is_dead:
            body["pattern"] = group.plan.filter
        answer = self._ask("s", "POST", f"{_API}/{self._name_of(group.queue)}/leave", body)
        if answer is not None and answer.head.status >= _FIRST_REFUSAL:
            raise _accused(HttpRule.LEAVE, f"{client.name}: to leave is answered with {answer.head.status}")

    def _go(self, client: HttpClient) -> None:
        """End our side, so that the broker has seen both the request and the end when it ends its own."""
        client.leaves = True
        client.sock.shutdown(socket.SHUT_WR)
        until = time.monotonic() + _END_S
        while client.open and client.polls and time.monotonic() < until:
            self.read(until - time.monotonic())
        if client.open:
            self.drop(client)
        self.clients.pop(client.key, None)

    # Settlements

    def _send_settlement(
        self,
        client: QueueClient,
        member: Member,
        copies: list[Copy],
        step: plan.Settle,
        producer: Producer | None,
        *,
        shows: bool = False,
    ) -> None:
        """By one request, or as many as there are deliveries, one behind the other."""
        known = [copy for copy in copies if copy in self._receipts]
        asked = []
        told = f"g-{step.verb}" if step.verb == "reject" else ""
        for some in [[copy] for copy in known] if step.each else [known] if known else []:
            shown = {copy: self._receipts[copy][0 if step.first_receipt else -1] for copy in some}
            body: dict[str, Any] = {"outcome": OUTCOMES[step.verb], "receipts": [each for _, each in shown.values()]}
            delay_s = step.delay_s if step.verb == "nack" else 0
            body |= {"delay_s": delay_s} if delay_s else {}
            body |= {"reason": told} if told else {}
            # One of a delivery that was given back since is of none, though the next has its number.
            lasts = {copy: self._receipts[copy][-1] for copy in some}
            counts = {copy: each[0] if each == lasts[copy] else 0 for copy, each in shown.items()}
            asked.append(self.oracle.settle(member, some, step.verb, delay_s, told, None, counts))
            path = f"{_API}/{self._name_of(member.group.queue)}/settle"
            teller = self._say("s", "POST", path, body)
        for answered in asked:
            answer = self._hear(teller)
            answered(None if answer is None else answer.head.status < _FIRST_REFUSAL, ())

    # Waiting

    def _settle(self) -> None:
        """Whoever has polled gets what must come; in the audit, everybody polls."""
        if self.unheard:
            return
        self.read(0.0)
        for number, (group_number, group) in self._auditors.items():
            self._poll_as(number, group_number, group, 0, _MANY)
        self._wanted |= {client.member.group for client in self._pollers() if client.member is not None}
        for wanted in self._wanted:
            while wanted.members and (copy := self.oracle.due_of(wanted, hard=True)) is not None:
                self._demand(wanted, copy)
        self._wanted.clear()

    def _pollers(self) -> list[HttpClient]:
        return [client for client in self.clients.values() if isinstance(client, HttpClient) and client.polls]

    def _demand(self, group: Group, copy: Copy) -> None:
        """All members ask, until something comes. Raises :class:`ViolationError` where nothing does."""
        patience = self.patience()
        wait_s = 0.0
        while True:
            for client in list(self.clients.values()):
                if isinstance(client, HttpClient) and client.member is not None and client.member.group is group:
                    self._poll(client, client.member, 1, wait_s)
            self.read(_AGAIN_S if self._pollers() else 0.0)
            self.oracle.now = self.now
            if self.oracle.due_of(group, hard=True) is not copy:
                return
            if patience.left_s() <= 0:
                raise self.oracle.missing(copy)
            wait_s = _AGAIN_S
