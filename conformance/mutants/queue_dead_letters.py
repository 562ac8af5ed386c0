"""Bugs in dead letters: what they tell, how they are handed over, and how they go back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.queues.dead_letters import dead_letters
from assay.reference_broker.queues.groups import retry
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import PendingEntry
from assay.reference_broker.queues.operations import replay
from assay.reference_broker.queues.operations.replay import DeadLetterOperations, DeadLetterStats, Replay
from assay.reference_broker.queues.queue import queue as queues
from assay.reference_broker.queues.queue.queue import DurableQueue
from assay.reference_broker.routing.message import Message

_Wrapped = Callable[..., Any]


@mutant("queue-letters-forget-their-consumer", "a dead letter does not tell which consumer had it last")
def forget_their_consumer(patch: Patch) -> None:
    def make(original: Callable[..., Message]) -> _Wrapped:
        def dead_letter_message(*args: object) -> Message:
            message = original(*args)
            left = tuple(pair for pair in message.user_properties if pair[0] != "_dlq_consumer")
            return msgspec.structs.replace(message, user_properties=left)

        return dead_letter_message

    patch.wrap(queues, "dead_letter_message", make)


@mutant("queue-replay-keeps-the-history", "a dead letter goes back with the history of its failure")
def keeps_the_history(patch: Patch) -> None:
    patch.replace(replay, "replayed_message", lambda letter: letter)


@mutant("queue-replay-copies", "a dead letter that went back stays a dead letter, too")
def copies(patch: Patch) -> None:
    def sent_back(group: ConsumerGroup, entry: PendingEntry) -> None:
        group.wait_again(entry, group.agenda.now)

    patch.replace(replay, "sent_back", sent_back)


@mutant("queue-replay-of-one-sends-all", "a replay that names one dead letter sends all of them back")
def one_sends_all(patch: Patch) -> None:
    def make(original: _Wrapped) -> _Wrapped:
        def one(self: DeadLetterOperations, source: DurableQueue, message_id: str) -> tuple[int, int, int]:
            partition, _, _ = original(self, source, message_id)
            return partition, source.contents.low_watermarks()[partition], source.partitions[partition].visible_end

        return one

    patch.wrap(DeadLetterOperations, "find_one", make)


@mutant("queue-replay-raises-the-settled", "a replay also sends back what consumers of the dead letters have settled")
def raises_the_settled(patch: Patch) -> None:
    def make(original: _Wrapped) -> _Wrapped:
        def build(self: Replay, source: DurableQueue, *rest: Any) -> None:
            target, agenda, ranges, *others = rest
            original(self, source, target, agenda, [(index, 0, end) for index, _, end in ranges], *others)

        return build

    def make_take(original: _Wrapped) -> _Wrapped:
        def take(source: DurableQueue, partition: int, offset: int, now: float) -> object:
            held = original(source, partition, offset, now)
            if held == []:
                group = next(iter(source.groups.values()))
                held = [(group, PendingEntry(group.places[partition], offset, 1))]
            return held

        return take

    patch.wrap(Replay, "__init__", make)
    patch.wrap(replay, "take", make_take)


@mutant("queue-replay-loses-what-is-refused", "a dead letter is settled before its queue has taken it")
def loses_what_is_refused(patch: Patch) -> None:
    def give_back(held: list[tuple[ConsumerGroup, PendingEntry]], now: float) -> None:
        for group, entry in held:
            group.remove(entry, None)

    patch.replace(replay, "give_back", give_back)


@mutant("queue-replay-by-prefix", "the dead letters to send back are looked up by the beginning of a queue's name")
def by_prefix(patch: Patch) -> None:
    def make(original: Callable[..., DurableQueue]) -> _Wrapped:
        def letters_of(self: DeadLetterOperations, queue: str) -> DurableQueue:
            return next(self._queues[name] for name in self._queues if name.startswith(f"$dlq/{queue}"))

        return letters_of

    patch.wrap(DeadLetterOperations, "letters_of", make)


@mutant("queue-dead-letters-run-out-of-retries", "a dead letter that is refused too often is given up")
def run_out_of_retries(patch: Patch) -> None:
    def make(original: _Wrapped) -> _Wrapped:
        def build(self: ConsumerGroup, *args: object, **kwargs: object) -> None:
            original(self, *args, **kwargs)
            self.keeps_exhausted = False

        return build

    patch.wrap(ConsumerGroup, "__init__", make)


@mutant("queue-refused-letters-are-dropped", "a message that the dead-letter queue does not take is settled anyway")
def refused_letters_are_dropped(patch: Patch) -> None:
    def dead_letter_failed(self: ConsumerGroup, entry: PendingEntry, reason: str) -> None:
        self.remove(entry, None)

    patch.replace(ConsumerGroup, "dead_letter_failed", dead_letter_failed)


@mutant("queue-dead-letters-count-the-present", "the number of dead letters ever is that of those there are")
def count_the_present(patch: Patch) -> None:
    def make(original: Callable[..., DeadLetterStats]) -> _Wrapped:
        def stats(self: DeadLetterOperations, queue: str) -> DeadLetterStats:
            found = original(self, queue)
            return msgspec.structs.replace(found, total=found.current)

        return stats

    patch.wrap(DeadLetterOperations, "stats", make)


@mutant("queue-replay-empties-one-group", "what a replay sent back is no dead letter for the first of its groups alone")
def empties_one_group(patch: Patch) -> None:
    rest = "give_back([(group, entry)], self._agenda.now)"
    sent = "sent_back(group, entry)"
    patch.rewrite(Replay, "send", sent, f"{sent} if group is held[0][0] else {rest}")


@mutant("queue-replay-of-all-ends-early", "a replay of more than two dead letters leaves the last one")
def ends_early(patch: Patch) -> None:
    patch.rewrite(
        DeadLetterOperations,
        "replay",
        "(index, low, partition.visible_end)",
        "(index, low, partition.visible_end - (partition.visible_end - low > 2))",
    )


@mutant("queue-replay-is-not-written", "after a restart what was sent back is a dead letter again")
def replay_not_written(patch: Patch) -> None:
    def sent_back(group: ConsumerGroup, entry: PendingEntry) -> None:
        with mock.patch.object(group.log, "ack"):
            original(group, entry)

    original = replay.sent_back
    patch.replace(replay, "sent_back", sent_back)


@mutant("queue-retries-are-called-a-timeout", "where both are bounded, retries that are used up are called a timeout")
def retries_are_a_timeout(patch: Patch) -> None:
    patch.rewrite(
        retry,
        "exhausted_reason",
        "return RETRIES_EXCEEDED",
        "return TOTAL_TIMEOUT_EXCEEDED if retry.total_timeout_s else RETRIES_EXCEEDED",
    )


@mutant("queue-letters-tell-their-second-delivery", "what a dead letter calls its first delivery is its last")
def second_delivery(patch: Patch) -> None:
    patch.rewrite(
        dead_letters,
        "dead_letter_message",
        'rfc3339(entry.first_delivered_at) if entry.first_delivered_at else ""',
        'rfc3339(entry.claimed_at) if entry.claimed_at else ""',
    )


@mutant("queue-replay-keeps-the-topic-of-the-letters", "what is sent back has the topic of the dead letters")
def keeps_topic(patch: Patch) -> None:
    old = "letter.user_property(ORIGINAL_TOPIC) or letter.topic"
    patch.rewrite(dead_letters, "replayed_message", old, "letter.topic")


@mutant("queue-replay-loses-priorities", "what is sent back is of normal priority")
def loses_priorities(patch: Patch) -> None:
    patch.replace(replay, "options_again", lambda stored: None)


@mutant("queue-refused-letters-are-hidden", "a dead letter that could not be sent back comes to nobody for an hour")
def hidden(patch: Patch) -> None:
    patch.rewrite(replay, "give_back", "entry.deadline = now", "entry.deadline = now + 3_600.0")
