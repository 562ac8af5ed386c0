"""Which rule a request rests on that is not done, though nothing is wrong with it, and what was special about it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any
from urllib.parse import parse_qsl

from assay.conformance.outcome import CaseFailureError
from assay.conformance.rules import Incident, Rule, StepFailureError

_QUEUE = "/api/v1/queues/[^/]+"
_STEPS = tuple(
    (re.compile(pattern), rule)
    for pattern, rule in (
        ("POST /api/v1/queues", Rule.HTTP_QUEUE),
        (f"POST {_QUEUE}/messages", Rule.HTTP_PUBLISH),
        (f"POST {_QUEUE}/consume", Rule.HTTP_CONSUME),
        (f"POST {_QUEUE}/settle", Rule.HTTP_SETTLE),
        (f"GET {_QUEUE}/stats", Rule.HTTP_STATS),
        ("POST (/v1)?/topics", Rule.HTTP_TOPIC),
        ("POST (/v1)?/topics/[^/]+/messages", Rule.HTTP_TOPIC_PUBLISH),
        ("POST (/v1)?/groups/[^/]+/join", Rule.HTTP_JOIN),
        ("GET (/v1)?/groups/[^/]+/poll", Rule.HTTP_POLL),
        ("POST (/v1)?/messages/ack", Rule.HTTP_ACK),
        ("POST (/v1)?/producers/init", Rule.HTTP_PRODUCER),
        ("POST /subjects/[^/]+/versions", Rule.HTTP_SCHEMA),
        ("POST /publish", Rule.HTTP_BRIDGE),
    )
)
_PLAIN = frozenset(
    {
        *("name", "settings", "partitions", "num_partitions", "messages", "payload", "value", "topic", "qos"),
        *("group", "consumer", "max_messages", "wait_s", "receipts", "outcome", "receipt_handle"),
        *("client_id", "topics", "member_id", "timeout", "limit", "transactional_id", "schemaType", "schema"),
    }
)
"""Members of bodies and parameters that make no request special."""
_OF_ANY_REQUEST = (404, 405)
"""With any 5xx: statuses of a route that does nothing, whatever it is asked."""
_FIRST_REFUSAL, _FIRST_ERROR = 300, 500


def _names(body: Any) -> Iterator[str]:
    if isinstance(body, dict):
        for name, value in body.items():
            yield name
            yield from _names(value) if name in _PLAIN else ()
        yield from (f"outcome {body[name]}" for name in body if name == "outcome" and body[name] != "accept")
    elif isinstance(body, list):
        for each in body:
            yield from _names(each)


def special(names: Iterable[str]) -> frozenset[str]:
    """Of the names of what was asked for, those that not every request has."""
    return frozenset(names) - _PLAIN


def failed_step(what: str, body: Any, text: str, *, status: int = 0, allowed: Collection[int] = ()) -> CaseFailureError:
    """A request (method and target) had another ``status`` than is ``allowed``, or no answer.

    Where a plain request that must be done fails as any other would, that is what another case is about. Of a special
    one, of a refusal, and of a request that must be refused, the case may well be, unless plain ones fail, too.
    """
    target, _, query = what.partition("?")
    rule = next((rule for pattern, rule in _STEPS if pattern.fullmatch(target)), None)
    must_be_done = max(allowed, default=0) < _FIRST_REFUSAL
    is_anybodys = not status or status >= _FIRST_ERROR or status in _OF_ANY_REQUEST
    if rule is None or not (must_be_done or status >= _FIRST_ERROR):
        return CaseFailureError(text)
    named = dict(parse_qsl(query, keep_blank_values=True))
    if not status and (named.get("timeout", "0s") != "0s" or (isinstance(body, dict) and body.get("wait_s"))):
        # It waits for a message, which may be what does not come.
        rule = Rule.HTTP_DELIVERY if rule is Rule.HTTP_CONSUME else rule
        must_be_done = False
    shape = special([*_names(body), *named])
    is_soft = bool(shape) or not is_anybodys or not must_be_done
    return StepFailureError(Incident(rule=rule, shape=shape, text=text, soft=is_soft))
