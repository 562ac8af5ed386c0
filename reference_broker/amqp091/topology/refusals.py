"""What is refused: the codes and words of RabbitMQ, and the rule that was broken."""

from __future__ import annotations

from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply


def not_found(what: str, rule: str) -> AmqpError:
    """``what``: a resource in words, as :func:`named` gives it."""
    return AmqpError(Reply.NOT_FOUND, f"no {what}", rule=rule)


def access_refused(text: str, rule: str) -> AmqpError:
    return AmqpError(Reply.ACCESS_REFUSED, text, rule=rule)


def precondition_failed(text: str, rule: str) -> AmqpError:
    return AmqpError(Reply.PRECONDITION_FAILED, text, rule=rule)


def named(kind: str, name: str, vhost: str) -> str:
    """A resource in words."""
    return f"{kind} '{name}' in vhost '{vhost}'"
