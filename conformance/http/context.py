"""What an HTTP case works with, and its decorator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, cast
from urllib.parse import quote

from assay.conformance.arrival import soon
from assay.conformance.case import DEFAULT_LIMIT_S, CaseContext, CaseFunction, Level, case
from assay.conformance.http.client import Answer, Headers, HttpClient, HttpConnection, basic
from assay.conformance.http.steps import failed_step, special
from assay.conformance.http.waiting import LongPoll
from assay.conformance.outcome import CaseFailureError, TargetUnreachableError
from assay.conformance.rules import Incident, Rule, StepFailureError
from assay.conformance.targets import Damage, Endpoint, unharmed
from assay.conformance.wire.http import HttpAnswer

HttpCaseFunction = Callable[["HttpContext"], Awaitable[None]]
QUEUES, TOPICS, BRIDGE, SCHEMAS = "http_queues", "http_topics", "http_bridge", "http_schemas"
TRACES, VIEWS = "http_traces", "http_views"
"""The APIs, as capabilities."""
API = "/api/v1"
PROBLEM = "application/problem+json"
_NEXT_WITHIN_S = 5.0
"""Further messages that are there come so soon."""
Message = Mapping[str, Any] | str


def http_case(
    case_id: str,
    *needs: str,
    clauses: tuple[str, ...],
    mutant: str,
    level: Level = "MUST",
    requires: tuple[str, ...] = (),
    near_miss: str = "",
    kills: tuple[str, ...] = (),
    settings: dict[str, Any] | None = None,
    together: bool = False,
    limit_s: float = DEFAULT_LIMIT_S,
) -> Callable[[HttpCaseFunction], HttpCaseFunction]:
    """Register a case ``http/<case_id>``; ``needs``: the APIs. See :func:`assay.conformance.case.case`."""
    register = case(
        f"http/{case_id}",
        clauses=clauses,
        level=level,
        requires=(*needs, *requires),
        mutant=mutant,
        near_miss=near_miss,
        kills=kills,
        settings=settings,
        together=together,
        limit_s=limit_s,
    )

    def decorate(function: HttpCaseFunction) -> HttpCaseFunction:
        register(cast(CaseFunction, function))
        return function

    return decorate


class HttpContext(CaseContext):
    """Clients, names nobody else uses, checks, and the transcript, for HTTP. Its ``endpoint`` is that of MQTT."""

    def __init__(self, *arguments: Any, where: Callable[[], Endpoint], **named: Any) -> None:
        """``where`` the broker speaks HTTP now: a restart may move it."""
        super().__init__(*arguments, **named)
        self.mqtt_version = 5
        self._where = where
        self._http: list[HttpConnection] = []
        self._made: dict[str, None] = {}
        """Paths that delete what the case has made."""
        self._sent: dict[str, set[Any]] = {}
        """Queue to the payloads that it was filled with."""
        self._accepted: set[tuple[str, str]] = set()
        """Group and message id."""
        self._changed: list[Incident] = []
        """Of the first message that came as nobody had sent it."""
        self._settles = False
        self.me = self.client("c1")

    # Clients

    @property
    def authority(self) -> str:
        """Host and port, for the header Host."""
        place = self._where()
        return f"{place.host}:{place.port}"

    def client(self, name: str = "", headers: Headers | None = None, *, anonymous: bool = False) -> HttpClient:
        """A client with the target's credentials; ``anonymous``: without any."""
        said: dict[str, str] = {}
        place = self._where()
        if not anonymous and place.username is not None:
            said = basic(place.username, place.password or "")
        self._names += 1
        return HttpClient(self, name or f"c{self._names}", {**said, **(headers or {})})

    @property
    def greeted(self) -> Endpoint:
        return self._where()

    async def open_http(self) -> HttpConnection:
        """A connection. Raises :class:`TargetUnreachableError`."""
        place = self._where()
        begin = asyncio.get_running_loop().create_connection
        try:
            _, connection = await self.patiently(
                lambda: begin(
                    HttpConnection, place.host, place.port, ssl=place.tls_context, server_hostname=place.server_name
                ),
                looks_again=False,
            )
        except OSError as error:
            message = f"cannot connect to {place.host}:{place.port}: {error or type(error).__name__}"
            raise TargetUnreachableError(message) from error
        self._http.append(connection)
        return connection

    @property
    def connected(self) -> bool:
        return bool(self._http) or super().connected

    def close(self) -> None:
        super().close()
        for connection in self._http:
            connection.abort()

    async def restart(self, damage: Damage = unharmed) -> None:
        """End the broker, and start it again on its data; the connections are lost."""
        await super().restart(damage)
        for connection in self._http:
            connection.abort()

    async def delete_leftovers(self) -> None:
        """Delete what the case has made, whatever became of it."""
        cleaner = self.client("cleaner")
        for path in reversed(self._made):
            with contextlib.suppress(CaseFailureError):
                await cleaner.delete(path)
        cleaner.close()

    def leaves(self, path: str) -> None:
        """To be deleted behind the case."""
        self._made[path] = None

    async def answer_or_end(self, connection: HttpConnection, what: str) -> HttpAnswer | None:
        """The next answer on a connection; None = it has ended."""
        try:
            return await self.patiently(connection.answers.get)
        except TimeoutError:
            self.fail(f"expected an answer, or the end of the connection, for {what}; seen neither{self.looked_on}")

    async def ends(self, connection: HttpConnection, what: str) -> None:
        """A connection must end, whatever is answered before."""
        while await self.answer_or_end(connection, what) is not None:
            pass

    # Names and steps

    def name(self, what: str = "q") -> str:
        """A name that nobody else uses."""
        self._names += 1
        return f"assay-{self._token}-{what}{self._names}"

    async def queue(self, **settings: Any) -> str:
        """A new queue with one partition, unless settings of the reference broker's say otherwise; its name."""
        name = self.name()
        self.leaves(f"{API}/queues/{name}")
        answer = await self.me.post(f"{API}/queues", {"name": name, "settings": {"partitions": 1, **settings}})
        self.status(answer, 201, 200)
        return name

    async def topic_named(self, partitions: int = 1, **more: Any) -> str:
        """A new topic of GoQueue's; its name."""
        name = self.name("t")
        self.leaves(f"/topics/{name}")
        answer = await self.me.post("/topics", {"name": name, "num_partitions": partitions, **more})
        self.status(answer, 201)
        return name

    async def fill(self, queue: str, *messages: Message) -> Answer:
        """Publish to a queue, all of which must be taken."""
        told = [{"payload": each} if isinstance(each, str) else each for each in messages]
        self._sent.setdefault(queue, set()).update(each.get("payload") for each in told)
        path, most = f"{API}/queues/{quote(queue, safe='')}/messages", self.batch()
        answers = []
        for start in range(0, len(told) or 1, most):
            some = told[start : start + most]
            answers.append(answer := await self.me.post(path, {"messages": some}))
            self.status(answer, 200)
            with self.step_of(Rule.HTTP_PUBLISH):
                self.same("the number of results", len(answer.at("results", kind=list)), len(some))
        return answers[0].with_more("results", answers[1:])

    def wait_s(self, wanted: float = 50.0) -> float:
        """How long a request may ask to wait: what is wanted, or less where the target takes no more."""
        return min(wanted, int(self.capabilities.get("http_wait_s", wanted)))

    def batch(self, wanted: int = 1_000) -> int:
        """Likewise, how many messages a request may ask for or bring."""
        return min(wanted, int(self.capabilities.get("http_batch", wanted)))

    async def publish_to(self, topic: str, *messages: Message) -> Answer:
        """The same of GoQueue's API."""
        told = [{"value": each} if isinstance(each, str) else each for each in messages]
        answer = await self.me.post(f"/topics/{topic}/messages", {"messages": told})
        self.status(answer, 200)
        return answer

    async def take(
        self, queue: str, count: int = 1, *, group: str = "g", wait_s: float = 0.0, **more: Any
    ) -> list[dict[str, Any]]:
        """Consume up to so many messages."""
        asked = {"group": group, "max_messages": self.batch(count), "wait_s": self.wait_s(wait_s), **more}
        answer = await self.me.post(f"{API}/queues/{quote(queue, safe='')}/consume", asked)
        self.status(answer, 200)
        found = cast(list[dict[str, Any]], answer.at("messages", kind=list))
        for each in found:
            text = f"{group} got the message {each.get('message_id')} of {queue}"
            is_new = (group, each.get("message_id")) not in self._accepted
            self.step(Rule.HTTP_ACCEPTED, is_new, f"{text}, which it had accepted")
            if not self._changed and each.get("payload") not in self._sent.get(queue, {each.get("payload")}):
                text += f" with the payload {each.get('payload')!r}, which nobody had sent"
                self._changed.append(Incident(rule=Rule.HTTP_CONTENT, text=text, soft=True))
        return found

    def other_reasons(self) -> list[Incident]:
        """See :class:`CaseContext`; a payload that was changed, and settlements that did nothing, too."""
        settled = Incident(rule=Rule.HTTP_ACCEPTED, text="what was settled may not be", soft=True)
        return super().other_reasons() + self._changed + [settled] * self._settles

    async def take_all(self, queue: str, count: int, *, at_once: int = 1_000, **more: Any) -> list[dict[str, Any]]:
        """Consume until so many messages have come, at most so many at once."""
        found: list[dict[str, Any]] = []
        clock = asyncio.get_running_loop().time
        since = clock()
        while len(found) < count:
            some = await self.take(queue, min(at_once, count - len(found)), wait_s=_NEXT_WITHIN_S, **more)
            if some:
                since = clock()
            elif self.wait_s(_NEXT_WITHIN_S) >= _NEXT_WITHIN_S or clock() - since > _NEXT_WITHIN_S:
                text = f"expected {count} messages of {queue}; seen {len(found)}: {payloads(found)}"
                raise StepFailureError(Incident(rule=Rule.HTTP_DELIVERY, shape=special(more), text=text, soft=True))
            found += some
        return found

    async def consumer_is_there(self, queue: str, group: str) -> None:
        """A group of the queue must soon have a consumer: the request of one has arrived."""
        more = soon(self)
        while await more():
            answer = await self.me.get(f"{API}/queues/{queue}/consumers")
            if any(each.get("group") == group for each in answer.at("consumers", kind=list)):
                return
        self.step(Rule.HTTP_DELIVERY, False, f"expected a consumer of {queue} in {group}; seen none", soft=True)

    @contextlib.asynccontextmanager
    async def long_poll(self, queue: str, group: str = "g") -> AsyncIterator[LongPoll]:
        """A consumer that waits, as long as the target lets one; it is there when the block begins."""
        if (wait_s := self.wait_s()) <= 0:
            self.unsupported("the broker lets no request wait")
        path = f"{API}/queues/{quote(queue, safe='')}/consume"
        poll = LongPoll(self.client("waits"), path, {"group": group, "wait_s": wait_s})
        try:
            await self.consumer_is_there(queue, group)
            yield poll
        finally:
            poll.cancel()

    async def none_left(self, queue: str, *, group: str = "g", **more: Any) -> None:
        """A group must get nothing more of a queue now."""
        found = await self.take(queue, 10, group=group, **more)
        self.must(not found, f"expected no message of {queue} for {group}; seen {payloads(found)}")

    async def settle(self, queue: str, outcome: str, *messages: Mapping[str, Any], **more: Any) -> Answer:
        """Settle what was consumed."""
        self._settles = True
        asked = {"outcome": outcome, "receipts": [each["receipt"] for each in messages], **more}
        return await self.me.post(f"{API}/queues/{quote(queue, safe='')}/settle", asked)

    async def done(self, queue: str, outcome: str, *messages: Mapping[str, Any], **more: Any) -> None:
        """Likewise, which must be answered with 200."""
        self.step(Rule.HTTP_DELIVERY, bool(messages), f"expected messages of {queue}; seen none", soft=True)
        self.status(await self.settle(queue, outcome, *messages, **more), 200)
        if outcome == "accept":
            self._accepted |= {(each.get("group", ""), each.get("message_id", "")) for each in messages}

    async def join(self, group: str, *topics: str, client: str = "me") -> Answer:
        """Become a member of a group of GoQueue's."""
        answer = await self.me.post(f"/groups/{group}/join", {"client_id": client, "topics": list(topics)})
        self.status(answer, 200, 201)
        return answer

    async def poll(self, group: str, member: str, wait: str = "0s", limit: int = 100) -> Answer:
        """Poll for a member; ``wait`` as GoQueue writes it."""
        target = f"/groups/{group}/poll?member_id={quote(member, safe='')}&timeout={wait}&limit={limit}"
        answer = await self.me.get(target)
        self.status(answer, 200)
        return answer

    async def poll_until(self, group: str, member: str, count: int) -> list[dict[str, Any]]:
        """Poll until so many messages of the first topic have come, of whatever partition."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            answer = await self.poll(group, member, "5s", count - len(found))
            some = [each for part in answer.at("messages", kind=dict).values() for each in part]
            text = f"expected {count} messages for {member}; seen {len(found)}"
            self.step(Rule.HTTP_POLL, bool(some), text, soft=True)
            found += some
        return found

    # Checks

    def status(self, answer: Answer, *allowed: int) -> None:
        """The answer must have one of these; that a request is done where it has to be is a step."""
        if answer.status not in allowed:
            text = f"expected {' or '.join(map(str, allowed))}; seen {answer}"
            raise failed_step(answer.what, answer.asked, text, status=answer.status, allowed=allowed)

    @contextlib.contextmanager
    def step_of(self, rule: Rule) -> Iterator[None]:
        """What fails in here is a step on which the case rests, and not what it is about."""
        try:
            yield
        except CaseFailureError as error:
            raise StepFailureError(Incident(rule=rule, text=str(error))) from error

    def same(self, what: str, seen: Any, wanted: Any) -> None:
        """A value must be this one."""
        self.must(seen == wanted, f"expected {what} to be {wanted!r}; seen {seen!r}")

    def refused(self, answer: Answer, statuses: int | Iterable[int], *codes: str) -> None:
        """It must be a problem (RFC 9457) with one of these statuses and codes."""
        allowed = (statuses,) if isinstance(statuses, int) else tuple(statuses)
        self.status(answer, *allowed)
        kind = answer.header("content-type").partition(";")[0].strip().lower()
        text = f"expected content of type {PROBLEM}; seen {kind or 'none'} with {answer}"
        self.step(Rule.HTTP_PROBLEM, kind == PROBLEM, text)
        with self.step_of(Rule.HTTP_PROBLEM):
            self.same("the member status", answer.at("status"), answer.status)
            self.must(bool(answer.at("title", kind=str)), f"expected a title; seen {answer}")
            code = answer.at("code", kind=str)
        self.must(not codes or code in codes, f"expected the code {' or '.join(codes)}; seen {answer}")

    def publish_refused(self, answer: Answer, status: int, code: str = "") -> None:
        """A publish was refused as a whole: by a problem, or by what became of each message."""
        self.status(answer, status)
        with self.step_of(Rule.HTTP_PROBLEM):
            told = answer.at(kind=dict).get("results") or [{"error": answer.json}]
        for each in told:
            problem = each.get("problem") or each.get("error")
            with self.step_of(Rule.HTTP_PROBLEM):
                self.must(isinstance(problem, dict) and "code" in problem, f"expected a problem; seen {answer}")
            self.same("its status", problem.get("status"), status)
            self.must(not code or problem["code"] == code, f"expected the code {code}; seen {answer}")

    def refused_as_goqueue(self, answer: Answer, *statuses: int) -> None:
        """It must have one of these statuses, and tell it with a text in GoQueue's form."""
        self.status(answer, *statuses)
        with self.step_of(Rule.HTTP_ERROR):
            self.must(bool(answer.at("error", kind=str)), f"expected a text in error; seen {answer}")
            self.same("the member status", answer.at("status", kind=int), answer.status)


def payloads(messages: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Of messages of the queue routes, or of GoQueue's."""
    return [each.get("payload", each.get("value")) for each in messages]
