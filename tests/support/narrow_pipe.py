"""What a command writes into a pipe while the terminal it was started from is narrow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def output_of(*command: str) -> str:
    """Standard output of ``assay COMMAND``. Raises :class:`subprocess.CalledProcessError`."""
    environment = {**os.environ, "COLUMNS": "20", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "assay.cli", *command], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout
