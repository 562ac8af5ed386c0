"""What people are told of the storage: counted by queue, bounded, and damage told once."""

from __future__ import annotations

from assay.reference_broker.queues.jobs.store import RecoveryNote
from assay.reference_broker.storage import notes as notes_module
from assay.reference_broker.storage.notes import Notes


def _note(queue: str, place: str) -> RecoveryNote:
    return RecoveryNote(queue=queue, place=place, problem="p")


def test_notes_are_counted_by_queue_and_told_as_they_come() -> None:
    notes = Notes()
    told: list[RecoveryNote] = []
    notes.add("a", "x", "p")
    notes.on_note = told.append
    notes.add("b", "y", "p")
    notes.add("a", "z", "p")
    assert notes.counts == {"a": 2, "b": 1}
    assert told == [_note("b", "y"), _note("a", "z")]
    assert notes.recovery == [_note("a", "x"), *told]
    assert notes.take_fresh() == notes.recovery
    assert notes.take_fresh() == []
    notes.add("b", "w", "p")
    assert notes.take_fresh() == [_note("b", "w")]
    assert notes.counts == {"a": 2, "b": 2}


def test_damage_is_told_once_by_its_place_and_everything_else_each_time() -> None:
    notes = Notes()
    for place in ("f.seg bytes 10", "f.seg bytes 10 to 20", "f.seg offset 10", "f.seg bytes 11", "f.seg", "f.seg"):
        notes.add("q", place, "p")
    assert [note.place for note in notes.recovery] == [
        "f.seg bytes 10",
        "f.seg offset 10",
        "f.seg bytes 11",
        "f.seg",
        "f.seg",
    ]
    assert notes.counts == {"q": 5}


def test_lists_are_bounded_and_counts_are_not() -> None:
    notes = Notes()
    most = notes_module._MAX_NOTES
    for number in range(most + 2):
        notes.add("q", str(number), "p")
    assert [len(notes.recovery), len(notes.fresh), notes.counts["q"]] == [most, most, most + 2]
    notes.take_fresh()
    notes.add("q", "last", "p")
    assert len(notes.recovery) == most
    assert notes.fresh == [_note("q", "last")]


def test_places_that_are_remembered_are_bounded() -> None:
    notes = Notes()
    most = notes_module.MAX_PLACES
    for _ in range(2):
        for number in range(most + 1):
            notes.add("q", f"f bytes {number}", "p")
    assert notes.counts["q"] == most + 2, "only the one over the limit is told twice"
