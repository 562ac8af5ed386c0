"""The findings name cases that exist, and every expected failure of a peer is among them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.case import load_cases
from conformance.peers import PEERS
from conformance.targets import load_target

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "findings" / "mqtt.md").read_text(encoding="utf-8")


def test_every_case_named_exists() -> None:
    named = set(re.findall(r"`(mqtt(?:311|5)/[a-z0-9-]+/[a-z0-9-]+)`", PAGE))
    assert len(named) > 50
    assert named - set(load_cases()) == set()


@pytest.mark.parametrize("name", PEERS)
def test_every_expected_failure_is_described_with_its_link(name: str) -> None:
    for entry in load_target(name).expect_fail:
        assert f"`{entry.case}`" in PAGE, entry.case
        assert entry.link in PAGE, entry.link
