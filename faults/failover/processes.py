"""Processes of a cluster: started with their output in a file, killed, paused, started again, gone at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from assay.faults.failover.measure import LeaderFault

_WAIT_S = 10.0
_TAIL_BYTES = 1_500


class NodeProcess:
    """One node; its process has a group of its own, which gets every signal."""

    def __init__(self, command: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._command = command
        self._environment = None if environment is None else dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, again if it ran before."""
        with (self.folder / "node.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def hurt(self, fault: LeaderFault) -> None:
        """Kill or pause it."""
        self._signal(signal.SIGKILL if fault is LeaderFault.KILL else signal.SIGSTOP)
        if fault is LeaderFault.KILL and self._process is not None:
            self._process.wait(_WAIT_S)

    def heal(self, fault: LeaderFault) -> None:
        """Start it again, or let it go on."""
        if fault is LeaderFault.KILL:
            self.start()
        else:
            self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill it; what it kept goes with its folder."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(_WAIT_S)

    def log_tail(self) -> str:
        """The end of what it wrote."""
        path = self.folder / "node.log"
        return path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace") if path.exists() else ""

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
