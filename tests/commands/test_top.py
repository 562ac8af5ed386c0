"""``assay status`` and ``assay top``."""

from __future__ import annotations

import msgspec

from assay.reference_broker.commands import top
from assay.reference_broker.commands.shown import moment, size, span
from tests.commands.conftest import Assay


def test_the_broker_at_a_glance(assay: Assay) -> None:
    assert assay.json("status")["stats"]["queues"]["depth"] == 0
    header, row = assay("status", "-o", "wide").splitlines()
    assert header.split()[0] == "NODE"
    assert row.split()[0] == "broker"


def test_queues_as_they_go_on(assay: Assay) -> None:
    assay("queue", "create", "busy", "-p", "1")
    assay("produce", "busy", "x")
    seen = assay("top", "--times", "2", "--interval", "0.1")
    assert seen.count("busy") == 2
    lines = assay("top", "--times", "2", "--interval", "0.1", "-o", "json", "--prefix", "bu").splitlines()
    (queue,) = msgspec.json.decode(lines[1])["queues"]
    assert (queue["ready"], queue["in_rate"]) == (1, 0)
    assert "--interval" in assay.fails(2, "top", "--interval", "0")


def test_rates_are_of_what_grew_and_of_what_was_there_before() -> None:
    def row(enqueued: int, acked: int) -> dict[str, object]:
        return {"queue": "q", "enqueued": enqueued, "groups": [{"acked": acked}]}

    rates = top._Rates()
    rates.add_to([row(10, 5)], 100.0)
    later = row(30, 9)
    rates.add_to([later, new := {**row(3, 0), "queue": "new"}], 102.0)
    assert (later["in_rate"], later["out_rate"]) == (10, 2)
    assert "in_rate" not in new
    again = row(0, 0)
    rates.add_to([again], 103.0)
    assert again["in_rate"] == 0, "it was deleted and made anew"


def test_figures_for_people() -> None:
    assert [size(each) for each in (0, 999, 1_500, 2e13)] == ["0 B", "999 B", "1.5 kB", "20 TB"]
    assert [span(each) for each in (0.25, 119, 600, 7_300, 200_000)] == ["0.25 s", "119 s", "10 min", "2 h", "2 d"]
    assert [moment(each) for each in (0, 1_796_000_000.5)] == ["-", "2026-11-30 00:53:20.500"]
