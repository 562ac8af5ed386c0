"""The bench of the broker's faces, with few messages."""

from __future__ import annotations

from assay.loadtests.bench.faces import FacesPlan, faces_lines, serve_faces
from assay.loadtests.bench.lines import run_lines


def test_every_face_publishes_and_consumes() -> None:
    with serve_faces() as faces:
        lines = faces_lines(faces, FacesPlan(messages=120, rounds=1))
        run = run_lines(lines, 1, lambda _text, _share: None)
    assert all(run.median(line.name) > 0 for line in lines)
