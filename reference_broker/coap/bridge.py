"""What a request over CoAP means: FluxMQ's bridge, which publishes. Its path is a topic; its query says who asks."""

from __future__ import annotations

import msgspec
from aiocoap.numbers.codes import Code

from assay.reference_broker.api.bridge import Publication, publish_to_topic
from assay.reference_broker.api.callers import Arrival, Credentials, read_authorization
from assay.reference_broker.api.problems import PROBLEMS, RequestError
from assay.reference_broker.api.problems import Code as ProblemCode
from assay.reference_broker.api.service import Service
from assay.reference_broker.coap.exchanges import Answer, Request
from assay.reference_broker.queues import QueueError
from assay.reference_broker.trace.described import described

_TEXT, _LINKS = 0, 40
"""Content formats: text/plain, application/link-format."""
_PUBLISHED = ("mqtt", "publish")
"""What may stand in front of a topic; ``mqtt`` alone is reserved."""
_HEALTH = ("health",)
_CORE = (".well-known", "core")
_READABLE = {_HEALTH: (_TEXT, b"ok"), _CORE: (_LINKS, b'</health>,</mqtt/publish>;rt="assay.publish"')}
_SECRETS = ("password", "authorization")
_NAMES = frozenset(("client_id", "username", *_SECRETS, "qos", "retain"))
_MOST_TOLD_BYTES = 128
"""Of a text for people: no answer is much larger than what asked, so that nobody is flooded by them."""


async def respond(service: Service, request: Request, arrival: Arrival) -> Answer:
    """Do what is asked. Nothing is raised: what goes wrong is an answer."""
    try:
        with service.requests.take():
            service.check_rate(arrival.address)
            return await _respond(service, request, arrival)
    except (RequestError, QueueError) as error:
        return refusal(error)
    except Exception:
        return refusal(service.tell_of_bug("a request"))


def refusal(error: RequestError | QueueError) -> Answer:
    """What an error is over CoAP: the status of HTTP, as far as CoAP has it (RFC 8075, 7)."""
    row = PROBLEMS[error.code]
    text = error.text.encode()[:_MOST_TOLD_BYTES].decode(errors="ignore")
    kind, detail = divmod(row.status, 100)
    return Answer(code=kind << 5 | detail, payload=text.encode(), max_age_s=row.retry_after_s)


async def _respond(service: Service, request: Request, arrival: Arrival) -> Answer:
    readable = _READABLE.get(request.path)
    if readable is not None:
        content_format, content = readable
        if request.code != Code.GET:
            return Answer(code=Code.METHOD_NOT_ALLOWED)
        if request.accept not in (None, content_format):
            return Answer(code=Code.NOT_ACCEPTABLE)
        return Answer(code=Code.CONTENT, payload=content, content_format=content_format)
    topic = _topic(request.path)
    if topic is None:
        return Answer(code=Code.NOT_FOUND)
    if request.code not in (Code.POST, Code.PUT):
        return Answer(code=Code.METHOD_NOT_ALLOWED, payload=b"topics are published to, by POST or PUT")
    if request.accept not in (None, _TEXT):
        return Answer(code=Code.NOT_ACCEPTABLE)
    query = _query(request.query)
    caller = await service.callers.find(_credentials(query), arrival, query.get("client_id"))
    if caller.username is not None:
        service.check_rate(caller.username, is_user=True)
    wanted = {"topic": topic} | {name: query[name] for name in ("qos", "retain") if name in query}
    try:
        publication = msgspec.convert(wanted, described(Publication), strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(ProblemCode.BAD_REQUEST, str(error)) from None
    publication = msgspec.structs.replace(publication, payload=request.payload)
    try:
        published = await publish_to_topic(service, caller, publication)
    except QueueError as error:
        raise caller.refusal(error) from error
    if published.id is None:
        return Answer(code=Code.CHANGED)
    return Answer(code=Code.CHANGED, payload=published.id.encode(), content_format=_TEXT)


def _topic(path: tuple[str, ...]) -> str | None:
    """None where there is nothing."""
    if path[:1] == _PUBLISHED[:1]:
        path = path[2:] if path[:2] == _PUBLISHED else ()
    return "/".join(path) or None


def _query(given: tuple[str, ...]) -> dict[str, str]:
    query: dict[str, str] = {}
    for each in given:
        name, _, value = each.partition("=")
        if name not in _NAMES or name in query:
            known = ", ".join(sorted(_NAMES))
            raise RequestError(ProblemCode.BAD_REQUEST, f"a query has each of {known} once at most, not {name[:40]!r}")
        query[name] = value
    return query


def _credentials(query: dict[str, str]) -> Credentials:
    secret = next((query[name] for name in _SECRETS if name in query), None)
    if "username" in query:
        return Credentials(username=query["username"], password=None if secret is None else secret.encode())
    return Credentials() if secret is None else read_authorization(secret)
