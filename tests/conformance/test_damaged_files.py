"""Looking at the files of a broker that is at work."""

from __future__ import annotations

from pathlib import Path

from assay.conformance.cases.damaged_files import files_below


def test_a_file_that_goes_while_it_is_looked_at_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "stays").write_bytes(b"four")
    # It is listed, and cannot be found: as one that was removed in between.
    (tmp_path / "folder" / "goes").symlink_to(tmp_path / "nowhere")
    assert {path.name: status.st_size for path, status in files_below(tmp_path).items()} == {"stays": 4}
