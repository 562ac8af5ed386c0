"""Producers and transactions over topics: ``$txn/<operation>``, with what is needed as user properties.

=========== ========================================================== ===============================================
operation   properties                                                 answer
=========== ========================================================== ===============================================
init        ``transactional-id``, or none                              ``producer-id``, ``producer-epoch``
begin       ``producer-id``, ``producer-epoch``; ``timeout``           ``transaction-id``
add         those of commit, ``queue``, ``partition``                  ``state``
commit      ``producer-id``, ``producer-epoch``, ``transaction-id``    ``state``: committed
abort       likewise                                                   ``state``: aborted
describe    ``transaction-id``                                         ``transaction``: all about it
list        none                                                       ``transactions``: those that are open
=========== ========================================================== ===============================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from assay.reference_broker.mqtt.queue_topics.publish_properties import (
    PARTITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTION_ID,
)
from assay.reference_broker.mqtt.queue_topics.settle_properties import whole_number
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.durations import parse_duration_ms
from assay.reference_broker.queues.messages.publish_options import TransactionKey, bad_option
from assay.reference_broker.queues.transactions.producer_names import ProducerIdentity
from assay.reference_broker.queues.transactions.transaction import TransactionInfo

if TYPE_CHECKING:
    from assay.reference_broker.queues.engine import QueueEngine

TRANSACTION_PREFIX: Final = "$txn/"
"""Publishes to topics that begin with it are requests about producers and transactions."""
TRANSACTIONAL_ID: Final = "transactional-id"
TIMEOUT: Final = "timeout"
QUEUE: Final = "queue"
STATE: Final = "state"
_OWNER: Final = "\0owner"
_READER: Final = "\0reader"
_HOLDER: Final = "\0holder"
"""Not of the client: no user property has a NUL in its name."""
_NAMES = frozenset((TRANSACTIONAL_ID, PRODUCER_ID, PRODUCER_EPOCH, TRANSACTION_ID, TIMEOUT, QUEUE, PARTITION))

Answer = Callable[[QueueError | None, Mapping[str, object]], None]
"""Takes the error, or what the request came to."""
_Properties = Mapping[str, str]


def perform(
    engine: QueueEngine,
    topic: str,
    properties: tuple[tuple[str, str], ...],
    owner: str,
    now: float,
    answer: Answer,
    *,
    reader: str | None,
    holder: str,
) -> None:
    """Do what a request of ``owner`` asks for; ``answer`` is called once, now or later.

    ``holder``: on whose account transactions are open, if more exactly known than its user. ``reader``: whose
    transactions it may look at, beside those that are nobody's; None = all. Raises :class:`QueueError` when it is
    refused at once, and then does not call it.
    """
    handler = OPERATIONS.get(topic[len(TRANSACTION_PREFIX) :])
    if handler is None:
        text = f"{topic[:80]!r} is none of {', '.join(TRANSACTION_PREFIX + name for name in OPERATIONS)}"
        raise QueueError(QueueErrorCode.BAD_ADDRESS, text)
    found: dict[str, str] = {}
    for name, value in properties:
        if name in found and name in _NAMES:
            raise bad_option(f"the user property {name} is there twice")
        found[name] = value
        if name == PRODUCER_ID:
            engine.transactions.check_owner(value, owner)
    whose = {_OWNER: owner, _HOLDER: holder} | ({} if reader is None else {_READER: reader})
    handler(engine, found | whose, now, answer)


def _init(engine: QueueEngine, properties: _Properties, now: float, answer: Answer) -> None:
    def done(error: QueueError | None, identity: ProducerIdentity | None) -> None:
        if identity is None:
            answer(error, {})
        else:
            answer(None, {PRODUCER_ID: str(identity.producer_id), PRODUCER_EPOCH: str(identity.epoch)})

    engine.transactions.init_producer(properties.get(TRANSACTIONAL_ID), now, done, owner=properties[_OWNER])


def _begin(engine: QueueEngine, properties: _Properties, now: float, answer: Answer) -> None:
    timeout_s: float | None = None
    if TIMEOUT in properties:
        try:
            timeout_s = parse_duration_ms(properties[TIMEOUT]) / 1000
        except ValueError as error:
            raise bad_option(f"the user property {TIMEOUT}: {error}") from error

    def done(error: QueueError | None, transaction_id: str) -> None:
        answer(error, {TRANSACTION_ID: transaction_id})

    engine.transactions.begin(*_producer(properties), now, done, timeout_s=timeout_s, holder=properties[_HOLDER])


def _add(engine: QueueEngine, properties: _Properties, now: float, answer: Answer) -> None:
    key = _key(properties)
    partition = whole_number(_needed(properties, PARTITION), PARTITION)
    engine.add_to_transaction(key, _needed(properties, QUEUE), partition, now)
    answer(None, {STATE: "open"})


def _commit(engine: QueueEngine, properties: _Properties, now: float, answer: Answer) -> None:
    engine.transactions.commit(*_key(properties), now, lambda error: answer(error, {STATE: "committed"}))


def _abort(engine: QueueEngine, properties: _Properties, now: float, answer: Answer) -> None:
    engine.transactions.abort(*_key(properties), now, lambda error: answer(error, {STATE: "aborted"}))


def _describe(engine: QueueEngine, properties: _Properties, _now: float, answer: Answer) -> None:
    found = engine.transactions.describe(_needed(properties, TRANSACTION_ID))
    if not _may_see(engine, properties, found):
        raise QueueError(QueueErrorCode.NOT_ALLOWED, f"transaction {found.transaction_id} belongs to another user")
    answer(None, {"transaction": msgspec.to_builtins(found)})


def _list(engine: QueueEngine, properties: _Properties, _now: float, answer: Answer) -> None:
    found = [one for one in engine.transactions.list() if _may_see(engine, properties, one)]
    answer(None, {"transactions": msgspec.to_builtins(found)})


def _may_see(engine: QueueEngine, properties: _Properties, found: TransactionInfo) -> bool:
    reader = properties.get(_READER)
    if reader is None:
        return True
    try:
        engine.transactions.check_owner(str(found.producer_id), reader)
    except QueueError:
        return False
    return True


OPERATIONS: Final[dict[str, Callable[[QueueEngine, _Properties, float, Answer], None]]] = {
    "init": _init,
    "begin": _begin,
    "add": _add,
    "commit": _commit,
    "abort": _abort,
    "describe": _describe,
    "list": _list,
}


def _needed(properties: _Properties, name: str) -> str:
    value = properties.get(name)
    if value is None:
        raise bad_option(f"the user property {name} is missing")
    return value


def _producer(properties: _Properties) -> ProducerIdentity:
    producer_id = whole_number(_needed(properties, PRODUCER_ID), PRODUCER_ID)
    return ProducerIdentity(producer_id, whole_number(_needed(properties, PRODUCER_EPOCH), PRODUCER_EPOCH))


def _key(properties: _Properties) -> TransactionKey:
    return TransactionKey(*_producer(properties), _needed(properties, TRANSACTION_ID))
