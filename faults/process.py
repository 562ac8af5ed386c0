"""The broker as a process: start and wait until ready, kill, pause, restart on the same port and data."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import yaml

from assay.faults.fault_kinds import Fault
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.file_kinds import FileKind, file_kind

START_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 10.0
_LOG_TAIL_BYTES: Final = 2_000
_MAX_READY_LINE_BYTES: Final = 65_536


class BrokerStartError(Exception):
    """The broker did not become ready; the text holds the end of its log."""


class BrokerRestartError(BrokerStartError):
    """The broker did not come back on its own data: a finding, not a failure of the harness."""


class _Ready(msgspec.Struct, frozen=True, kw_only=True):
    """First line of the adapter's output."""

    port: int
    host: str
    version: str = ""


class BrokerProcess:
    """The reference broker, run by ``assay.conformance.adapter``, with its data and log in ``folder``."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        mutants: tuple[str, ...] = (),
        *,
        disk_goes_wrong: bool = False,
        seed: int = 0,
    ) -> None:
        """``disk_goes_wrong``: it takes :attr:`disk_faults`; ``seed`` then decides what of a write is done."""
        self._folder = folder
        self._config = config
        self._mutants = mutants
        self._disk_goes_wrong = disk_goes_wrong
        self._seed = seed
        self._process: asyncio.subprocess.Process | None = None
        self._log: BinaryIO | None = None
        self.host = ""
        self.port = 0
        """Free at the first start, the same ever after."""
        self.version = ""
        self.starts = 0
        self.clock_ahead_s = 0.0
        """How far the machine's wall clock, as the broker sees it at its next start, is ahead of the true one."""
        self.disk_faults: dict[int, Fault] = {}
        """What is wrong with the disk now, by numbers that mean nothing."""

    @property
    def log_path(self) -> Path:
        """What the process writes to its standard error."""
        return self._folder / "broker.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def exit_status(self) -> int | None:
        """Status of an ended process; None while it runs or before it was started."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        """Start and wait for the ready line, which follows a real handshake.

        Raises :class:`BrokerStartError`; :class:`BrokerRestartError` when it had run before.
        """
        process = await self.launch()
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                line = await process.stdout.readline()
            ready = msgspec.json.decode(line, type=described(_Ready))
        except (TimeoutError, msgspec.DecodeError, ValueError) as error:
            await self.stop()
            kind = BrokerRestartError if self.starts else BrokerStartError
            message = f"the broker did not start (status {self.exit_status}): {self.log_tail() or error}"
            raise kind(message) from error
        self.host, self.port, self.version = ready.host, ready.port, ready.version
        self.starts += 1

    async def launch(self) -> asyncio.subprocess.Process:
        """Start the process, and leave it to itself."""
        config_path = self._write_config()
        if self._log is None:
            self._log = self.log_path.open("ab")
        command = [
            sys.executable,
            "-m",
            "assay.conformance.adapter",
            "--config",
            str(config_path),
            "--port",
            str(self.port),
        ]
        if self._disk_goes_wrong:
            command += ["--disk-faults", self._wrong_with_the_disk().decode()]
        command += [word for mutant in self._mutants for word in ("--mutant", mutant)]
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            limit=_MAX_READY_LINE_BYTES,
            # A process group of its own: Ctrl-C at the terminal ends the run in order, not the broker under it.
            start_new_session=True,
        )
        return self._process

    def _wrong_with_the_disk(self) -> bytes:
        faults = [msgspec.to_builtins(fault) for fault in self.disk_faults.values()]
        return msgspec.json.encode({"disk_faults": faults, "seed": self._seed})

    def tell_disk_faults(self) -> None:
        """The process's disk goes wrong as :attr:`disk_faults` says, from now on."""
        process = self._process
        if not self._disk_goes_wrong or process is None or process.returncode is not None or process.stdin is None:
            return
        process.stdin.write(self._wrong_with_the_disk() + b"\n")

    def _write_config(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "broker.yaml"
        config = {**self._config, "data_dir": str(self._folder / "data")}
        if self.clock_ahead_s:
            ahead = {"movable_clock": True, "clock_ahead_s": self.clock_ahead_s}
            config["testing"] = {**config.get("testing", {}), **ahead}
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path

    def rot(self, fault: Fault, rng: random.Random) -> None:
        """Flip bits in the files of the broker's data folder, whether it runs or not."""
        data = self._folder / "data"
        for _ in range(fault.times):
            files = [
                (path, path.stat().st_size)
                for path in sorted(data.rglob("*"))
                if path.is_file() and fault.files in (FileKind.ALL, file_kind(path.relative_to(data).as_posix()))
            ]
            sizes = [size for _, size in files]
            if not any(sizes):
                return
            (path, size) = rng.choices(files, sizes)[0]
            with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
                at = rng.randrange(size)
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes(each ^ 1 << rng.randrange(8) for each in byte))

    def log_tail(self) -> str:
        """The end of the log."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()

    async def kill(self) -> None:
        """kill -9, and wait until the process is gone: what it wrote stays with the operating system."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def terminate(self) -> None:
        """SIGTERM, and wait until the process has ended in order. Raises :class:`BrokerRestartError`."""
        if self._process is not None and self._process.returncode is None:
            self._signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self._process.wait()
            except TimeoutError as error:
                message = f"the broker did not end within {STOP_TIMEOUT_S:g} s of SIGTERM: {self.log_tail()}"
                raise BrokerRestartError(message) from error

    def pause(self) -> None:
        """SIGSTOP: time goes on, the process does not."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self) -> None:
        """End in order (the adapter ends with its standard input), by force after a while; twice is fine."""
        process = self._process
        if process is not None and process.returncode is None:
            self.resume()
            if process.stdin is not None:
                process.stdin.close()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                await self.kill()
        if self._log is not None:
            self._log.close()
            self._log = None
