"""docs/operating.md: its commands are run as they stand there, in their order, in an empty folder."""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
FORKING = ROOT / "tests" / "support" / "forking_assay.py"
WAIT_S = 240.0
PORTS = ("1883", "5672", "8080", "8443", "9000")
SHIM = """\
#!/bin/sh
exec {python} -I -S {forking} run {path} "$@"
"""


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment where ``assay`` begins at once."""
    path = tmp_path / "forking"
    shim = tmp_path / "bin" / "assay"
    shim.parent.mkdir()
    shim.write_text(SHIM.format(python=sys.executable, forking=FORKING, path=path))
    shim.chmod(0o755)
    (tmp_path / "empty").mkdir()
    command = [sys.executable, str(FORKING), "serve", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as forking:
        assert forking.stdout is not None
        assert forking.stdout.readline() == b"ready\n"
        folders = (str(shim.parent), str(Path(sys.executable).parent), os.environ["PATH"])
        yield {**os.environ, "PATH": os.pathsep.join(folders), "XDG_CONFIG_HOME": str(tmp_path / "config")}
        assert forking.stdin is not None
        forking.stdin.close()


def _free_ports() -> list[str]:
    """Below those that the system gives to who asks for any: nobody else takes them meanwhile."""
    found: list[str] = []
    while len(found) < len(PORTS):
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found += [str(port)] if str(port) not in found else []
    print("ports:", *found)
    return found


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("openssl") is None, reason="the page uses both")
def test_the_commands_of_the_page_work(tmp_path: Path, commands: dict[str, str]) -> None:
    script = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
    ports = dict(zip(PORTS, _free_ports(), strict=True))
    script = re.sub(rf"\b({'|'.join(PORTS)})\b", lambda found: ports[found[1]], script)
    commands["ASSAY_SERVER"] = f"http://127.0.0.1:{ports['8080']}"
    script = f"set -eu\ntrap 'kill ${{BROKER-}} ${{SECURE-}} 2> /dev/null || true' EXIT\n{script}"
    finished = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path / "empty",
        env=commands,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    log = (tmp_path / "empty" / "broker.log").read_text()
    assert finished.returncode == 0, finished.stdout[-3_000:] + finished.stderr[-3_000:] + log[-3_000:]
    for part in (
        "created orders",
        "published orders:",
        "published 10000 messages",
        "published 3 messages",
        "billing goes on from",
        "rejected by consumer",
        "cancelled orders:delay:0",
        "both or none",
        "it does not fit, and is refused",
        "over MQTT\n",
        "over AMQP\n",
        "over HTTP\n",
        "over gRPC\n",
        'mqtt_queue_depth{queue="orders"',
        "consume.acked",
        "read again",
        "acme.jobs",
        "no faults",
    ):
        assert part in finished.stdout, part
    assert "(misfit)" in finished.stderr


def test_the_page_names_every_command_and_every_exit_status() -> None:
    from assay.cli import _PARTS
    from assay.reference_broker.commands.ends import Exit

    operating = [name for name, part in _PARTS.items() if part.module.endswith("commands.cli")]
    assert [name for name in operating if not re.search(rf"assay {name}\b", PAGE)] == []
    assert [each.value for each in Exit] == [int(number) for number in re.findall(r"(?m)^\| (\d) \|", PAGE)]
