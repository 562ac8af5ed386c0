"""A picture of the console over the data that a run on real processes left, where Chromium is there to take it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import parse_config
from assay.reference_broker.queues import QueueError
from assay.reference_broker.trace.integrity import READ_ERRORS
from assay.reference_broker.trace.results import read_result, write_result

PICTURE: Final = "console.webp"
ARTEFACT: Final = "console"
"""Its name among the artefacts of the run."""
MAX_BYTES: Final = 80_000
_TIMEOUT_S: Final = 45.0
_LOOKED_AT_MS: Final = 5_000
"""Of the page's own time: it asks for its figures twice."""
_SIZE: Final = "1200,860"
NAMES: Final = ("chromium", "chromium-browser", "google-chrome")


def add_picture(run: Path) -> str:
    """Picture the first queue of the broker whose ``broker.yaml`` and ``data`` lie in a run's folder; the run's result
    names it then. Returns what became of it, as a sentence.

    The broker starts on a copy of the data, which it may change as it opens them.
    """
    chromium = next((found for name in NAMES if (found := shutil.which(name))), None)
    if chromium is None:
        return "No picture of the console: Chromium is not installed."
    try:
        result = read_result(run / "result.json")
        settings: dict[str, Any] = yaml.safe_load((run / "broker.yaml").read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory(prefix="assay-console-") as folder:
            shutil.copytree(run / "data", Path(folder) / "data")
            settings |= {"data_dir": f"{folder}/data", "listeners": [{"port": 0, "protocols": ["http"]}]}
            with Broker(parse_config(settings)) as broker:
                queue = next((each.queue for each in broker.snapshot().queues if not each.queue.startswith("$")), "")
                page = f"{broker.addresses[0].url}/console/#/queues/{queue}"
                _take(chromium, page, Path(folder), run / PICTURE)
        size = (run / PICTURE).stat().st_size
        if size > MAX_BYTES:
            (run / PICTURE).unlink()
            return f"No picture of the console: it has {size:,} bytes."
        write_result(run, msgspec.structs.replace(result, artefacts={**result.artefacts, ARTEFACT: PICTURE}))
    except (*READ_ERRORS, OSError, QueueError, subprocess.SubprocessError) as error:
        return f"No picture of the console: {error}"
    return f"The console over what the run left: {run / PICTURE}"


def _take(chromium: str, url: str, folder: Path, picture: Path) -> None:
    """Raises ``OSError`` or :class:`subprocess.SubprocessError`."""
    command = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--hide-scrollbars",
        "--disable-background-networking",
        f"--user-data-dir={folder}/profile",
        f"--window-size={_SIZE}",
        f"--virtual-time-budget={_LOOKED_AT_MS}",
        f"--screenshot={picture.resolve()}",
        url,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            process.wait(_TIMEOUT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
