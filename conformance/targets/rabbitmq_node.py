"""A RabbitMQ node for the time of one run: ``python -m assay.conformance.targets.rabbitmq_node FOLDER``.

RabbitMQ consists of a shell script, an Erlang machine with helpers, and the Erlang port mapper, which makes itself a
daemon when nobody has started one. This process starts a port mapper of its own and the node, both on loopback ports
that nobody else uses, keeps everything that they write in ``FOLDER``, and ends them all when its standard input ends
or SIGTERM comes. ``FOLDER`` holds ``rabbitmq.conf``, ``enabled_plugins`` and ``rabbitmq-env.conf``.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from assay.conformance.targets.process import free_port, search_path

_PREFIXES = ("/usr/lib/rabbitmq/lib", "/usr/local/lib/rabbitmq/lib", "/opt/rabbitmq", "/usr/local/opt/rabbitmq")
"""Where packages put RabbitMQ's own scripts. Those on the PATH want to become the user ``rabbitmq``."""
_KILL_TIMEOUT_S = 3.0
_POLL_S = 0.5


class NotInstalledError(Exception):
    """RabbitMQ or Erlang is not there; the text says which."""


def find_home() -> Path:
    """Folder of the newest RabbitMQ, which holds ``sbin`` and ``plugins``; ``RABBITMQ_HOME`` goes first.

    Raises :class:`NotInstalledError`.
    """
    named = os.environ.get("RABBITMQ_HOME", "")
    candidates = [Path(named)] if named else []
    for prefix in map(Path, _PREFIXES):
        candidates += [prefix, *sorted(prefix.glob("rabbitmq_server-*"), key=_number, reverse=True)]
    for home in candidates:
        if (home / "sbin" / "rabbitmq-server").exists():
            return home
    message = "RabbitMQ was not found: install rabbitmq-server, or set RABBITMQ_HOME to the folder that holds its sbin"
    raise NotInstalledError(message)


def _number(home: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in home.name.rpartition("-")[2].split(".") if part.isdigit())


def installed_release(home: Path) -> str:
    """The version as the MQTT plugin's folder (or archive) states it; empty if there is no such plugin."""
    names = [path.name.removesuffix(".ez") for path in (home / "plugins").glob("rabbitmq_mqtt-*")]
    return names[0].rpartition("-")[2] if names else ""


def environment(
    folder: Path, *, epmd_port: int, distribution_port: int, node: str = "assay@localhost"
) -> dict[str, str]:
    """Environment of a node: every path in ``folder``, every port on loopback, nothing taken from the service's.

    Its data belong to ``node``, its name, of which a port mapper knows one.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
    return inherited | {
        "PATH": search_path(),
        "HOME": str(folder),  # the cookie is written there
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": node,
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "rabbitmq.pid"),
        "RABBITMQ_DIST_PORT": str(distribution_port),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }


@contextmanager
def _child(command: list[str], env: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a group of its own, which is killed as a whole: what it kept is thrown away with the folder."""
    process = subprocess.Popen(command, env=env, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(_KILL_TIMEOUT_S)


def _wait(processes: tuple[subprocess.Popen[bytes], ...], ending: int) -> int:
    """Until standard input ends or there is something to read from ``ending`` (status 0), or one of the processes ends
    (its status, or 1)."""
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.buffer, selectors.EVENT_READ)
        selector.register(ending, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(_POLL_S):
                if key.fd == ending or not os.read(key.fd, 4_096):
                    return 0
            for process in processes:
                status = process.poll()
                if status is not None:
                    return status or 1


def run_node(folder: Path, ending: int) -> int:
    """Run a node until standard input ends or the descriptor ``ending`` can be read; returns the exit status.

    Raises :class:`NotInstalledError`.
    """
    home = find_home()
    env = environment(folder, epmd_port=free_port(), distribution_port=free_port())
    epmd = shutil.which("epmd", path=env["PATH"])
    if epmd is None:
        message = "epmd of Erlang was not found on the PATH: install erlang-base"
        raise NotInstalledError(message)
    mapper_command = [epmd, "-port", env["ERL_EPMD_PORT"], "-address", "127.0.0.1"]
    with (
        _child(mapper_command, env, folder) as mapper,
        _child([str(home / "sbin" / "rabbitmq-server")], env, folder) as node,
    ):
        return _wait((mapper, node), ending)


def main(arguments: list[str]) -> int:
    """Exit status: 0 ended as asked, 1 the node ended by itself, 2 wrong usage, 3 not installed."""
    if len(arguments) != 1:
        print("usage: python -m assay.conformance.targets.rabbitmq_node FOLDER | --version", file=sys.stderr)
        return 2
    # The signal is only noted: an exception would lose a process that is being started just then.
    ending, note = os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: os.write(note, b"."))
    try:
        if arguments[0] == "--version":
            print(installed_release(find_home()))
            return 0
        return run_node(Path(arguments[0]).absolute(), ending)
    except NotInstalledError as error:
        print(error, file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
