"""The report of the demo stays small enough to attach to a ticket and quick to copy: run by the environment ``demo``.

``python tests/report_size_check.py FOLDER``, of a report with all suites on at least one broker.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

MAX_REPORT_BYTES = 15_000_000
MAX_FILES = 400
LEAST_CASES = 700


def main(folder: Path) -> str:
    """Returns what is wrong; empty if nothing is."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    if not (folder / "index.html").is_file():
        return f"{folder} holds no report"
    reports = [gzip.decompress(path.read_bytes()) for path in files if path.name == "report.jsonl.gz"]
    cases = max((report.count(b'"type":"result"') for report in reports), default=0)
    size = sum(path.stat().st_size for path in files)
    print(f"{folder}: {size:,} bytes in {len(files)} files; {cases} cases")
    if cases < LEAST_CASES:
        return f"fewer than {LEAST_CASES} cases: this says nothing about the size of a whole report"
    if size > MAX_REPORT_BYTES or len(files) > MAX_FILES:
        return f"more than {MAX_REPORT_BYTES:,} bytes or {MAX_FILES} files"
    return ""


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])) or 0)
