"""The broker's own process may open as many files as the system lets it, and says when connections do not fit."""

from __future__ import annotations

import resource
import subprocess
import sys

from assay.reference_broker.server.file_limit import SPARE_FILES

_SCRIPT = """
import resource
from assay.reference_broker.server.file_limit import raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (300, {hard}))
print(raise_file_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_becomes_the_hard_one() -> None:
    # In a process of its own: the hard limit cannot be raised again.
    script = _SCRIPT.format(hard=700)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=90)
    assert done.stdout.split() == [str(700 - SPARE_FILES), "700", "700"]


def test_serve_says_how_many_connections_fit() -> None:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (700, 700))

    command = [sys.executable, "-m", "assay.cli", "serve", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=lower
    ) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("ready ")
        broker.terminate()
        said = broker.communicate(timeout=90)[1]
    assert f"{700 - SPARE_FILES} connections fit" in said
    assert "ulimit -n" in said
