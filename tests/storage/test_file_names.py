"""Names of segments say what they are, and nothing else is taken for one of ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.storage.file_names import (
    parse_segment_name,
    parse_swap_name,
    segment_name,
    swap_name,
)

LAST = 2**63 - 1
OFFSETS = st.integers(0, LAST)


@given(OFFSETS, OFFSETS)
def test_offsets_are_read_as_written(base_offset: int, end_offset: int) -> None:
    assert parse_segment_name(segment_name(base_offset)) == base_offset
    assert parse_segment_name(segment_name(base_offset, ".idx"), ".idx") == base_offset
    assert parse_swap_name(swap_name(base_offset, end_offset)) == (base_offset, end_offset)


@pytest.mark.parametrize("digits", [f"{LAST + 1:020}", "9" * 20, "1" * 19, "1" * 21, "-" + "1" * 19, "٣" * 20, ""])
def test_what_is_no_offset_of_ours_is_no_name_of_ours(digits: str) -> None:
    assert parse_segment_name(f"{LAST:020}.seg") == LAST
    assert parse_segment_name(digits + ".seg") is None
    for name in (f"{digits}-{LAST:020}", f"{LAST:020}-{digits}"):
        assert parse_swap_name(name + ".swap") is None


def test_other_endings_are_other_files() -> None:
    name = segment_name(5)
    assert parse_segment_name(name, ".idx") is parse_segment_name(name.removesuffix(".seg")) is None
    assert parse_swap_name(swap_name(1, 2).removesuffix(".swap")) is None
    assert parse_swap_name(swap_name(1, 2).replace("-", "_")) is None
