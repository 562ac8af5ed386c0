"""Brokers that write sessions and retained messages down wrongly, or read them wrongly: it shows after a restart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from conformance.mutants import Patch, mutant, variation
from reference_broker.core import session_journal, session_restore
from reference_broker.core.queues.store import NewRecord
from reference_broker.core.session_journal import KeptSession
from reference_broker.storage.session_store import SessionStore


def _lose(patch: Patch, owner: Any, name: str, **values: object) -> None:
    """What a function returns has these fields, whatever they were."""

    def make(original: Callable[..., msgspec.Struct]) -> Callable[..., msgspec.Struct]:
        return lambda *given, **named: msgspec.structs.replace(original(*given, **named), **values)

    patch.wrap(owner, name, make)


@variation("sessions-are-written-record-by-record", "each change of a session is a write of its own")
def record_by_record(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def write(self: SessionStore, records: Sequence[NewRecord], now: float) -> None:
            for record in records:
                original(self, [record], now)

        return write

    patch.wrap(SessionStore, "write", make)


@mutant("restart-undoes-replaced-subscriptions", "a subscription is written when it is made, not when it is replaced")
def replaced_not_written(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def collect(self: KeptSession, topic_filter: str, changes: list[Any]) -> None:
            if topic_filter not in self._filters or topic_filter not in self.subscriptions:
                original(self, topic_filter, changes)

        return collect

    patch.wrap(KeptSession, "_collect_subscription", make)


@mutant("restart-brings-unsubscribed-filters-back", "subscriptions read at the start are not removed when they end")
def removed_not_written(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def adopt(self: KeptSession, entries: Any, waiting: Any, filters: set[str], inbound: set[int]) -> None:
            original(self, entries, waiting, set(), inbound)

        return adopt

    patch.wrap(KeptSession, "adopt", make)


@mutant("restart-forgets-no-local", "No Local is not written down")
def forgets_no_local(patch: Patch) -> None:
    _lose(patch, session_journal, "stored_subscription", no_local=False)


@mutant("restart-forgets-retain-as-published", "Retain As Published is not written down")
def forgets_retain_as_published(patch: Patch) -> None:
    _lose(patch, session_journal, "stored_subscription", retain_as_published=False)


@mutant("restart-forgets-subscription-identifiers", "subscription identifiers are not read at the start")
def forgets_identifiers(patch: Patch) -> None:
    _lose(patch, session_restore, "restored_subscription", identifier=0)


@mutant("restart-undoes-replaced-shares", "a shared subscription that is replaced is not written again")
def replaced_share_not_written(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def collect(self: KeptSession, topic_filter: str, changes: list[Any]) -> None:
            known = topic_filter in self._filters and topic_filter in self.subscriptions
            if not (known and topic_filter.startswith("$share/")):
                original(self, topic_filter, changes)

        return collect

    patch.wrap(KeptSession, "_collect_subscription", make)
