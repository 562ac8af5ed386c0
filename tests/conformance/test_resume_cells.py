"""The resume matrix as data: which cells there are, and what the standards leave open in them."""

from __future__ import annotations

import pytest

from assay.conformance.cases.resume_cells import Cut, Lifetime, Plan, Presence, expired, matrix
from assay.conformance.cases.resume_deliveries import QOS1_PUBACK_SENT, QOS2_PUBREL_READ, Owed
from assay.conformance.cases.resume_publishes import QOS1_SENT, QOS2_PUBREC_READ, QOS2_PUBREL_SENT


@pytest.mark.parametrize(("version", "cells"), [(4, 4 * 2 * 2), (5, 5 * 3 * 2)])
def test_every_combination_is_one_cell(version: int, cells: int) -> None:
    names = [plan.name for plan in matrix(version)]
    assert len(names) == len(set(names)) == cells


def plan(version: int, cut: Cut, lifetime: Lifetime, *, clean_start: bool = False) -> Plan:
    return Plan(version=version, cut=cut, lifetime=lifetime, clean_start=clean_start)


@pytest.mark.parametrize("cut", Cut)
def test_a_clean_start_finds_no_session(cut: Cut) -> None:
    for lifetime in Lifetime:
        assert plan(5, cut, lifetime, clean_start=True).presence(0.0) is Presence.GONE


def test_a_session_without_expiry_ends_with_its_connection() -> None:
    assert plan(4, Cut.TAKEOVER, Lifetime.NONE).presence(0.0) is Presence.GONE
    assert plan(5, Cut.RESET, Lifetime.NONE).presence(0.0) is Presence.GONE
    assert plan(5, Cut.TAKEOVER, Lifetime.NONE).presence(0.0) is Presence.EITHER


def test_a_slow_machine_accuses_nobody() -> None:
    assert plan(5, Cut.RESET, Lifetime.SHORT).presence(0.5) is Presence.KEPT
    assert plan(5, Cut.RESET, Lifetime.SHORT).presence(2.5) is Presence.EITHER
    assert plan(5, Cut.TAKEOVER, Lifetime.SHORT).presence(2.5) is Presence.KEPT
    assert plan(5, Cut.RESET, Lifetime.LONG).presence(2.5) is Presence.KEPT
    assert {expiring.presence(3.0) for expiring in expired()} == {Presence.GONE}


def test_an_end_that_was_perhaps_not_noticed_leaves_open_whether_the_session_has_expired() -> None:
    assert plan(5, Cut.UNNOTICED, Lifetime.OVER).presence(3.0) is Presence.EITHER
    assert plan(5, Cut.UNNOTICED, Lifetime.NONE).presence(3.0) is Presence.EITHER
    assert plan(4, Cut.UNNOTICED, Lifetime.NONE).presence(3.0) is Presence.GONE
    assert plan(5, Cut.UNNOTICED, Lifetime.SHORT).presence(2.5) is Presence.EITHER
    assert plan(5, Cut.UNNOTICED, Lifetime.LONG).presence(2.5) is Presence.KEPT
    assert QOS1_PUBACK_SENT.allowed(plan(5, Cut.UNNOTICED, Lifetime.OVER)) == {Owed.NOTHING, Owed.PUBLISH}


def test_only_disconnect_proves_that_the_last_packet_was_received() -> None:
    assert QOS1_PUBACK_SENT.allowed(plan(5, Cut.DISCONNECT_WITH_WILL, Lifetime.LONG)) == {Owed.NOTHING}
    assert QOS1_PUBACK_SENT.allowed(plan(5, Cut.HALF_CLOSE, Lifetime.LONG)) == {Owed.NOTHING, Owed.PUBLISH}
    assert QOS2_PUBREL_READ.allowed(plan(5, Cut.RESET, Lifetime.LONG)) == {Owed.PUBREL}


def test_copies_of_a_message_that_was_cut_off() -> None:
    lost, told = plan(5, Cut.RESET, Lifetime.NONE), plan(5, Cut.DISCONNECT, Lifetime.NONE)
    assert list(QOS1_SENT.copies(lost, kept=True)) == [1, 2]
    assert list(QOS2_PUBREC_READ.copies(lost, kept=True)) == [1]
    assert list(QOS2_PUBREC_READ.copies(told, kept=False)) == [0, 1]
    assert list(QOS2_PUBREL_SENT.copies(lost, kept=False)) == [0, 1]
    assert list(QOS2_PUBREL_SENT.copies(told, kept=False)) == [1]
