"""Deliveries as the application sees them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from assay.reference_broker.embedded.messages import ACK_POLICY, ACK_TIMEOUT, AckPolicy, NewMessage, new_message
from assay.reference_broker.mqtt.queue_topics.addresses import is_queue_topic
from assay.reference_broker.queues import Delivery, Outcome, QueueError
from assay.reference_broker.queues.delivery.settle_request import SettleRequest
from assay.reference_broker.queues.messages.durations import parse_duration_ms
from assay.reference_broker.queues.messages.publish_options import TransactionKey

if TYPE_CHECKING:
    from assay.reference_broker.embedded.turns import EngineTurns

log = logging.getLogger(__name__)


class ReceivedMessage:
    """A delivery as the application sees it."""

    __slots__ = ("consumer_id", "delivery", "settled")

    def __init__(self, delivery: Delivery, consumer_id: str) -> None:
        self.delivery = delivery
        self.consumer_id = consumer_id
        self.settled = False
        """Whether it was acknowledged, given back or rejected by this object."""

    @property
    def payload(self) -> bytes:
        return self.delivery.message.payload

    @property
    def message_id(self) -> str:
        return self.delivery.message_id

    @property
    def queue(self) -> str:
        return self.delivery.queue

    @property
    def topic(self) -> str:
        return self.delivery.topic

    @property
    def delivery_count(self) -> int:
        """1 at the first delivery to this group."""
        return self.delivery.delivery_count

    @property
    def user_properties(self) -> tuple[tuple[str, str], ...]:
        return self.delivery.message.user_properties

    @property
    def response_topic(self) -> str | None:
        return self.delivery.message.response_topic

    @property
    def correlation_data(self) -> bytes | None:
        return self.delivery.message.correlation_data

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.message_id} delivery {self.delivery_count}>"


class AsyncReceived(ReceivedMessage):
    """A delivery, with coroutines to settle it."""

    __slots__ = ("_turns",)

    def __init__(self, turns: EngineTurns, delivery: Delivery, consumer_id: str) -> None:
        super().__init__(delivery, consumer_id)
        self._turns = turns

    def apply_policy(self) -> None:
        """What the publisher wants of a subscriber: see :class:`AckPolicy`."""
        message = self.delivery.message
        policy = message.user_property(ACK_POLICY)
        driver, now = self._turns.turn()
        try:
            if policy == AckPolicy.NONE:
                driver.node.engine.settle(
                    self.queue, self._request(Outcome.ACCEPT), consumer_id=self.consumer_id, now=now
                )
                self.settled = True
            elif policy == AckPolicy.TIMEOUT and (text := message.user_property(ACK_TIMEOUT)) is not None:
                request = self._request(Outcome.EXTEND, extend_s=parse_duration_ms(text) / 1000)
                driver.node.engine.settle(self.queue, request, consumer_id=self.consumer_id, now=now)
        except (QueueError, ValueError) as error:
            log.info("the ack policy of %s cannot be kept: %s", self.message_id, error)

    def _request(self, outcome: Outcome, **options: Any) -> SettleRequest:
        """``options``: further fields of it."""
        return SettleRequest(outcome=outcome, message_ids=(self.message_id,), group=self.delivery.group, **options)

    async def _settle(self, request: SettleRequest) -> None:
        queue, holder = self.queue, self.consumer_id
        await self._turns.finished(
            lambda engine, now, confirm: engine.settle(queue, request, consumer_id=holder, now=now, on_done=confirm)
        )
        self.settled = self.settled or request.outcome is not Outcome.EXTEND

    async def ack(self, *, within: TransactionKey | None = None) -> None:
        """Done with it. Returns when that is as durable as the queue promises; ``within`` a transaction, when that has
        it."""
        await self._settle(self._request(Outcome.ACCEPT, within=within))

    async def nack(self, delay_s: float | None = None) -> None:
        """Deliver it again: by the queue's rule, or no earlier than ``delay_s`` from now."""
        await self._settle(self._request(Outcome.FAIL, delay_s=delay_s))

    async def reject(self, reason: str = "rejected by consumer") -> None:
        """Give it up: it goes to the dead-letter queue, with the reason."""
        await self._settle(self._request(Outcome.REJECT, reason=reason))

    async def extend(self, seconds: float | None = None) -> None:
        """More time: ``seconds`` from now, or the queue's delivery timeout once more."""
        await self._settle(self._request(Outcome.EXTEND, extend_s=seconds))

    async def reply(self, message: bytes | NewMessage) -> None:
        """Answer the request: on its response topic, with its correlation data. It is not settled by that.

        Raises :class:`ValueError` when the message is no request.
        """
        topic = self.response_topic
        if topic is None:
            raise ValueError(f"{self.message_id} has no response topic")
        new = msgspec.structs.replace(new_message(message, {}), correlation_data=self.correlation_data)
        if is_queue_topic(topic):
            await self._turns.publish(topic, new)
        else:
            driver, now = self._turns.turn()
            driver.node.state.publish(new.to_message(topic, now), None, now)
