"""The findings name cases that exist, and every expected failure of a peer is among them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from assay.conformance.case import load_cases
from assay.conformance.peers import PEERS
from assay.conformance.targets import load_target

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "docs/findings"
PAGES = {f"{FOLDER}/{path.name}": path.read_text(encoding="utf-8") for path in (ROOT / FOLDER).glob("*.md")}


def test_every_case_named_exists() -> None:
    named = set(re.findall(r"`((?:mqtt311|mqtt5|amqp091)/[a-z0-9-]+/[a-z0-9-]+)`", "".join(PAGES.values())))
    assert len(named) > 50
    assert named - set(load_cases()) == set()


@pytest.mark.parametrize("name", PEERS)
def test_every_expected_failure_is_described_with_its_link(name: str) -> None:
    for entry in load_target(name).expect_fail:
        described = [page for page, text in PAGES.items() if f"`{entry.case}`" in text]
        # Either reported in public, and a page names where, or described by the page of ours that is the link.
        assert any(entry.link in (page, *re.findall(r"https?://[^\s)]+", PAGES[page])) for page in described), entry
