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
WAIT_S = 840.0
PORTS = ("1883", "5672", "8080", "8443", "9000")
END_OF_BLOCK = "-- end of block --"
PRINTED: tuple[tuple[str, ...], ...] = (
    ("^the configuration is fine$",),
    (r"^broker +\d", r"^broker +yes +yes "),
    ("^created orders$", r"^orders( +0){6} +3 ", "^updated orders$", r"^delivery_timeout_s +60\.0", "^ +2 +0 +0$"),
    (r"^published orders:\d:0$", "^published 2 messages$", "^published 10000 messages$"),
    (r"(?s)(^orders:\d:\d\t.*){6}", r"\tcustomer-7\tfirst order$", "third order$"),
    ("^published 3 messages$",),
    (
        r"^billing +0 +0 +0",
        r"^ +2 +\d",
        "^MESSAGE ",
        "^billing goes on from, by partition: 0: 0, 1: 0, 2: 0$",
        "^GROUP +CONS",
    ),
    (r"^current +1", "rejected by consumer", "^replayed 1, skipped 0, refused 0$", "^purged 1 dead letters$"),
    ("^delayed as orders:delay:0$", r"^orders:delay:0 +\d{4}-", "^cancelled orders:delay:0$"),
    ("^TRANSACTION ", r"^invoices:\d:\d\t.*both or none$"),
    (
        "^orders-value has it as version 1, id 1$",
        "^FULL$",
        "^created checked$",
        r"^published checked:\d:0$",
        r"\(misfit\)$",
        "^it does not fit, and is refused$",
        "^orders-value +1 +1$",
    ),
    ("^over MQTT$", "^over AMQP$", "^over HTTP$", "^over gRPC$", r"(?s)(^data: .*){4}"),
    ("^shop/# +1 +1", "^shop-window .*connected", "the window shows: a sale$", '"matched": ?true'),
    (r"^broker .* \d queues$", r"^groups\.0\.group +billing", r'^mqtt_queue_depth\{queue="orders"\} [1-9]'),
    (
        "^a sale$",
        "^followed$",
        "^4bf92f3577b34da6a3ce929d0e0e4736 +orders +completed",
        r"publish\.received",
        r"consume\.acked",
    ),
    ("debug", r"^broker +\d", "/api/v1/"),
    ("^read again; what waits for the next start: nothing$",),
    (r"^\* +local ", r"^acme +tom +0", r"^quotas\.max_queues +2", r"^published jobs:\d:0$", r"^acme\.jobs +1"),
    (r"^broker +\d",),
    ("no faults", r"^Queue orders \d+ records"),
)
"""What each block of the page prints, among other things, on its terminal."""
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


@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("openssl") is None, reason="the page uses both")
def test_the_commands_of_the_page_work(tmp_path: Path, commands: dict[str, str]) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == len(PRINTED), "each block is judged by what it prints"
    script = "".join(f"{block}\necho '{END_OF_BLOCK}'\n" for block in blocks)
    ports = dict(zip(PORTS, _free_ports(), strict=True))
    script = re.sub(rf"\b({'|'.join(PORTS)})\b", lambda found: ports[found[1]], script)
    commands["ASSAY_SERVER"] = f"http://127.0.0.1:{ports['8080']}"
    ended = "${BROKER-} ${SECURE-} ${STREAM-} ${SUBSCRIBER-}"
    script = f"set -eu\ntrap 'kill {ended} 2> /dev/null || true' EXIT\n{script}"
    finished = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path / "empty",
        env=commands,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    log = (tmp_path / "empty" / "broker.log").read_text()
    assert finished.returncode == 0, finished.stdout[-3_000:] + log[-3_000:]
    printed = finished.stdout.split(f"{END_OF_BLOCK}\n")
    for block, expected, found in zip(blocks, PRINTED, printed, strict=False):
        for pattern in expected:
            assert re.search(pattern, found, re.MULTILINE), (
                f"{pattern!r} is missing from what\n{block}printed:\n{found}"
            )


def test_nothing_in_a_block_stops_a_shell_that_it_is_typed_into() -> None:
    """zsh, the shell of many desktops, knows no comments in what is typed in."""
    for block in re.findall(r"```(?:sh|console)\n(.*?)```", PAGE, re.DOTALL):
        assert not re.search(r"(?m)(^|\s)#(\s|$)", block)
        assert "$ " not in block


def test_what_goes_on_in_the_background_prints_into_a_file() -> None:
    """On one terminal, what two programs print at a time may be mixed, even within a line."""
    behind = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    behind = [line for line in behind if line.endswith(" &")]
    assert behind
    assert [line for line in behind if " > " not in line] == []


def test_the_page_names_every_command_and_every_exit_status() -> None:
    from assay.cli import _PARTS
    from assay.reference_broker.commands.ends import Exit

    operating = [name for name, part in _PARTS.items() if part.module.endswith("commands.cli")]
    assert [name for name in operating if not re.search(rf"assay {name}\b", PAGE)] == []
    assert [each.value for each in Exit] == [int(number) for number in re.findall(r"(?m)^\| (\d) \|", PAGE)]
