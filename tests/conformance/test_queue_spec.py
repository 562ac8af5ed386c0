"""The pages of the specification, the registry and the index say the same."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from assay.conformance.registry import load_statements
from assay.conformance.spec_pages import (
    FIRST_IDS,
    FOLDER,
    INDEX,
    Page,
    PageError,
    Requirement,
    index_text,
    problems,
    read_page,
    read_pages,
    state_diagram,
)
from assay.reference_broker.queues.groups import lifecycle
from assay.reference_broker.queues.transactions import transaction

REMEDY = "run python -m assay.conformance.spec_pages"


def test_ids_levels_and_texts_are_well_formed_and_unique() -> None:
    assert list(problems(read_pages())) == []


def test_the_index_lists_every_page() -> None:
    text = INDEX.read_text(encoding="utf-8")
    assert text == index_text(text, read_pages()), REMEDY


DRAWN = [("lifecycle", lifecycle.TRANSITIONS), ("transactions", transaction.TRANSITIONS)]
"""Pages that draw a state machine, and its table in the core."""


@pytest.mark.parametrize(("page", "transitions"), DRAWN, ids=[page for page, _ in DRAWN])
def test_state_machines_are_drawn_from_their_tables(page: str, transitions: Iterable[tuple[str, str, str]]) -> None:
    drawing = state_diagram(transitions)
    assert drawing in (FOLDER / f"{page}.md").read_text(encoding="utf-8"), f"docs/spec/{page}.md must hold:\n{drawing}"


def test_the_first_ids_are_still_there() -> None:
    assert load_statements("queue").keys() >= FIRST_IDS


def test_a_row_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "delay.md"
    page.write_text("# Delay\n\n| Q-DELAY-01 | MUST | A cell is missing. |\n", encoding="utf-8")
    with pytest.raises(PageError, match=r"delay\.md:3"):
        read_page(page)


def test_a_reason_belongs_to_a_requirement(tmp_path: Path) -> None:
    page = tmp_path / "delay.md"
    row = r"| Q-DELAY-01 | MUST | One \| two are two words. | seed 004, G1 |"
    page.write_text(f"# Delay\n\n{row}\n\n- Q-DELAY-01 (no): nobody sees it.\n", encoding="utf-8")
    [entry] = read_page(page).requirements
    assert (entry.text, entry.testable, entry.reason) == ("One | two are two words.", "no", "nobody sees it.")
    page.write_text(f"# Delay\n\n{row}\n\n- Q-DELAY-02 (no): nobody sees it.\n", encoding="utf-8")
    with pytest.raises(PageError, match="Q-DELAY-02"):
        read_page(page)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"id": "Q-RETRY-01"}, "belong"),
        ({"id": "Q-DELAY-1"}, "two digits"),
        ({"level": "must"}, "level"),
        ({"text": "Too short."}, "characters"),
        ({"source": "hearsay"}, "hearsay"),
    ],
)
def test_what_a_requirement_must_not_be(changed: dict[str, str], complaint: str) -> None:
    fields = {
        "id": "Q-DELAY-01",
        "level": "MUST",
        "text": "A sentence of ordinary length.",
        "source": "ours",
        **changed,
    }
    [found] = problems([Page(name="delay", title="Delay", requirements=(Requirement(**fields),))])
    assert complaint in found
