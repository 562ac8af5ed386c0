"""Which toxiproxy server to use: the one named, the one on the PATH, or the embedded one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from assay.faults.toxiproxy.client import ToxiproxyClient, ToxiproxyError
from assay.faults.toxiproxy.server import ToxiproxyThread

URL_VARIABLE: Final = "TOXIPROXY_URL"
PROGRAM: Final = "toxiproxy-server"
START_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.05


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A running server."""

    url: str
    kind: str
    """``embedded``, ``program`` (started from the PATH) or ``given`` (by address)."""
    version: str


@contextmanager
def toxiproxy_endpoint(url: str | None = None, *, seed: int = 0, own_toxics: bool = False) -> Iterator[Endpoint]:
    """A toxiproxy server for the duration of a ``with`` block.

    ``url``, else ``TOXIPROXY_URL``, names a running one; else ``toxiproxy-server`` is started if the PATH has it,
    unless ``own_toxics`` says that toxics are needed which only the embedded server has; else the embedded server runs
    in a thread. Raises :class:`ToxiproxyError` when the one chosen does not answer.
    """
    url = url or os.environ.get(URL_VARIABLE)
    program = None if own_toxics else shutil.which(PROGRAM)
    if url:
        yield Endpoint(url=url, kind="given", version=ToxiproxyClient(url).version())
    elif program:
        with _started(program, seed) as own:
            yield Endpoint(url=own, kind="program", version=ToxiproxyClient(own).version())
    else:
        with ToxiproxyThread(seed=seed) as server:
            yield Endpoint(url=server.url, kind="embedded", version=ToxiproxyClient(server.url).version())


@contextmanager
def _started(program: str, seed: int) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [program, "-host", "127.0.0.1", "-port", str(port), "-seed", str(seed)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_ready(process, url)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], url: str) -> None:
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            ToxiproxyClient(url).version()
            return
        except ToxiproxyError as error:
            if process.poll() is not None or time.monotonic() > give_up_at:
                message = f"{PROGRAM} did not start: {error}"
                raise ToxiproxyError(message) from error
            time.sleep(_POLL_S)
