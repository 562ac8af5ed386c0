"""The RabbitMQ launcher, with small programs in the place of RabbitMQ and Erlang's port mapper."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.conformance.targets.rabbitmq_node import NotInstalledError, environment, find_home, installed_release

MODULE = "assay.conformance.targets.rabbitmq_node"
SERVER = """#!/bin/sh
sleep 600 &
echo "$! $ERL_EPMD_PORT $RABBITMQ_DIST_PORT" > "$HOME/node.started"
echo up > "$HOME/up"
wait
"""
EPMD = '#!/bin/sh\necho "$$ $*" > "$HOME/epmd.started"\nexec sleep 600\n'


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def fake_home(tmp_path: Path) -> Path:
    home = tmp_path / "rabbitmq_server-9.8.7"
    write_program(home / "sbin" / "rabbitmq-server", SERVER)
    (home / "plugins" / "rabbitmq_mqtt-9.8.7").mkdir(parents=True)
    write_program(tmp_path / "bin" / "epmd", EPMD)
    return home


def launch(home: Path, folder: Path, *arguments: str, python_path: Path | None = None) -> subprocess.Popen[bytes]:
    """The launcher, with the folder of our epmd first on the PATH."""
    folder.mkdir(exist_ok=True)
    env = {**os.environ, "RABBITMQ_HOME": str(home)}
    # search_path() puts the folder of this Python first; epmd is not there.
    if python_path is not None:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(python_path), os.environ.get("PYTHONPATH"))))
    env["PATH"] = f"{home.parent / 'bin'}:{os.environ['PATH']}"
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, *(arguments or (str(folder),))],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_the_version_is_that_of_the_mqtt_plugin(fake_home: Path, tmp_path: Path) -> None:
    output, _ = launch(fake_home, tmp_path / "run", "--version").communicate()
    assert output.strip() == b"9.8.7"
    (fake_home / "plugins" / "rabbitmq_mqtt-9.8.7").rmdir()
    assert installed_release(fake_home) == ""


def test_no_rabbitmq_and_wrong_usage_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.conformance.targets.rabbitmq_node._PREFIXES", ())
    monkeypatch.setenv("RABBITMQ_HOME", str(tmp_path))
    with pytest.raises(NotInstalledError, match="RABBITMQ_HOME"):
        find_home()
    process = launch(tmp_path, tmp_path / "run", "one", "two")
    _, complaint = process.communicate()
    assert (process.returncode, complaint.startswith(b"usage:")) == (2, True)


def test_the_node_keeps_to_its_folder_and_to_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBITMQ_NODE_PORT", "5672")
    monkeypatch.setenv("ERL_FLAGS", "-name service@host")
    env = environment(tmp_path, epmd_port=11, distribution_port=12)
    own = {name: value for name, value in env.items() if name.startswith(("RABBITMQ_", "ERL_"))}
    assert "RABBITMQ_NODE_PORT" not in own
    assert "ERL_FLAGS" not in own
    assert own["ERL_EPMD_ADDRESS"] == "127.0.0.1"
    assert "inet_dist_use_interface {127,0,0,1}" in own["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"]
    paths = [value for name, value in own.items() if name.endswith(("_FILE", "_BASE"))]
    assert len(paths) == 7
    assert all(value.startswith(str(tmp_path)) for value in paths)


@pytest.mark.parametrize("ending", ["end of input", "SIGTERM"])
def test_all_processes_end_with_the_launcher(fake_home: Path, tmp_path: Path, ending: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    os.mkfifo(folder / "up")
    process = launch(fake_home, folder)
    assert (folder / "up").read_text() == "up\n"
    helper, epmd_port, distribution_port = (folder / "node.started").read_text().split()
    assert epmd_port != distribution_port
    if ending == "SIGTERM":
        process.terminate()
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 0, complaint
    mapper, *arguments = (folder / "epmd.started").read_text().split()
    assert arguments == ["-port", epmd_port, "-address", "127.0.0.1"]
    for pid in (helper, mapper):
        assert not lives(int(pid))


def test_a_signal_while_a_process_is_being_started_leaves_none_behind(fake_home: Path, tmp_path: Path) -> None:
    """The node is up before the launcher knows of it: its start hangs in the launcher, and the signal comes then."""
    folder = tmp_path / "run"
    folder.mkdir()
    os.mkfifo(folder / "up")
    slow = tmp_path / "slow"
    write_program(
        slow / "sitecustomize.py",
        "import subprocess, time\n"
        "start = subprocess.Popen._execute_child\n"
        "def execute(self, *args, **named):\n"
        "    start(self, *args, **named)\n"
        "    end = time.monotonic() + 1.0\n"
        "    while time.monotonic() < end:\n"
        "        time.sleep(0.01)\n"
        "subprocess.Popen._execute_child = execute\n",
    )
    process = launch(fake_home, folder, python_path=slow)
    assert (folder / "up").read_text() == "up\n"
    process.terminate()
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 0, complaint
    assert not lives(int((folder / "node.started").read_text().split()[0]))


def lives(pid: int) -> bool:
    """Whether a process runs; one that waits only for its parent to notice its end does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_a_node_that_ends_by_itself_ends_the_launcher(fake_home: Path, tmp_path: Path) -> None:
    write_program(fake_home / "sbin" / "rabbitmq-server", "#!/bin/sh\necho 'bad configuration' >&2; exit 7\n")
    process = launch(fake_home, tmp_path / "run")
    assert process.stderr is not None
    assert process.wait(60) == 7
    assert b"bad configuration" in process.stderr.read()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
