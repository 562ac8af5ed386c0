"""Version of the Go module that a program was built from: ``python -m assay.conformance.targets.go_version PROGRAM``.

For brokers whose own command tells none. Go writes the main module and its version into every program it builds; a
build from a clone has a version made of date and commit, or ``(devel)`` where it was not told of the clone
(``-buildvcs=false``).
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from assay.conformance.targets.process import search_path

_MAIN_MODULE = re.compile(rb"\nmod\t\S+\tv?(\d[^\t\n]*|\(devel\))")


def module_version(program: str) -> str:
    """Empty if there is no such program on the PATH, or none that tells."""
    found = shutil.which(program, path=search_path())
    if found is None:
        return ""
    match = _MAIN_MODULE.search(Path(found).read_bytes())
    return match[1].decode() if match else ""


if __name__ == "__main__":
    version = module_version(sys.argv[1])
    print(version)
    sys.exit(not version)
