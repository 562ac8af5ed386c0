"""What somebody has who installed the package and nothing else: run by the environment ``package``, not by pytest.

``python tests/package_check.py`` with the interpreter of an environment that holds the built wheel without extras.
"""

from __future__ import annotations

import importlib.util
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ASSAY = str(Path(sys.executable).with_name("assay"))
WAIT_S = 60.0
CONNECT = bytes.fromhex("100d00044d5154540402003c000174")
CONNACK = bytes.fromhex("20020000")
NEEDS_EXTRA = {
    "conformance": "conformance",
    "sim": "sim",
    "faults": "faults",
    "load": "load",
    "bench": "load",
    "spark": "spark",
    "report": "reports",
    "demo": "all",
}
_LEFT_BEHIND = (".egg-info", "__pycache__", ".pyc", "build", ".tox")
PARTS = ("reference_broker", "sim", "conformance", "loadtests", "faults", "spark_analysis", "reports")
WITHOUT_EXTRA = (
    "serve",
    "quirks",
    "hash-password",
    "token",
    "storage",
    "fuzz",
    "queue",
    "produce",
    "consume",
    "top",
    "context",
)


def run(folder: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Outside of the checkout, whose folders would be found in place of what is installed."""
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=folder)


def check_command_line(folder: str) -> None:
    assert (
        run(folder, ASSAY, "--version").stdout == run(folder, sys.executable, "-m", "assay", "--version").stdout != ""
    )
    for part in WITHOUT_EXTRA:
        finished = run(folder, ASSAY, part, "--help")
        assert finished.returncode == 0, finished.stderr
    for part, extra in NEEDS_EXTRA.items():
        # These two look when there is something to do.
        arguments = {"spark": ("analyse", folder), "demo": ()}.get(part, ("--help",))
        finished = run(folder, ASSAY, part, *arguments)
        assert finished.returncode == 2, f"{part}: {finished.returncode} {finished.stderr}"
        assert finished.stderr.count("\n") == 1, finished.stderr
        assert f"'assay-mq[{extra}]'" in finished.stderr, finished.stderr


def check_names(folder: str) -> None:
    """One name is added to what can be imported: a folder ``reports`` or ``sim`` of the user's own stays that."""
    files = metadata.files("assay-mq") or ()
    names = {name for path in files if (name := path.parts[0]) != ".." and not name.endswith(".dist-info")}
    assert names == {"assay"}, names
    user = Path(folder) / "user"
    for part in PARTS:
        (user / part).mkdir(parents=True)
        (user / part / "monthly.py").write_text("")
    script = "; ".join(f"import {part}.monthly, assay.{part}" for part in PARTS)
    finished = run(str(user), sys.executable, "-c", f"{script}; from assay import Broker")
    assert finished.returncode == 0, finished.stderr


def check_console(folder: str) -> None:
    """The console is served as it lies in the checkout."""
    script = "from importlib.resources import files; print(files('assay.reference_broker') / 'http' / 'console')"
    installed = Path(run(folder, sys.executable, "-c", script).stdout.strip())
    files = [path for path in (ROOT / "reference_broker" / "http" / "console").iterdir() if path.is_file()]
    assert any(path.name == "index.html" for path in files)
    assert all((installed / path.name).read_bytes() == path.read_bytes() for path in files)


def check_broker(folder: str) -> None:
    """The broker serves, and ends when it is told to."""
    configuration = ROOT / "docs" / "examples" / "local.yaml"
    finished = run(folder, ASSAY, "serve", "--check", "--config", str(configuration))
    assert finished.returncode == 0, finished.stderr
    command = [ASSAY, "serve", "--port", "0", "--data-dir", f"{folder}/data"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as broker:
        assert broker.stdout is not None
        line = broker.stdout.readline()
        host, _, port = line.split("mqtt://")[1].split()[0].rpartition(":")
        with socket.create_connection((host, int(port)), WAIT_S) as client:
            client.sendall(CONNECT)
            assert client.recv(100) == CONNACK
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(WAIT_S) == 0
    finished = run(folder, ASSAY, "storage", "verify", f"{folder}/data")
    assert finished.returncode == 0, finished.stdout + finished.stderr


def unpacked_files() -> list[str]:
    """What lies in an unpacked source distribution, but for what building and running leave there."""
    files = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [str(path) for path in files if not any(part.endswith(_LEFT_BEHIND) for part in path.parts)]


def check_source_distribution(folder: str) -> None:
    """It holds every file of the checkout, tests and documents too."""
    built = run(str(ROOT), sys.executable, "-m", "uv", "build", "--quiet", "--sdist", "--out-dir", folder)
    assert built.returncode == 0, built.stderr
    with tarfile.open(next(Path(folder).glob("assay_mq-*.tar.gz"))) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    tracked = run(str(ROOT), "git", "ls-files").stdout.split("\n") if (ROOT / ".git").exists() else unpacked_files()
    assert len(tracked) > 100, tracked
    missing = [name for name in tracked if name and name not in held]
    assert not missing, missing


def main() -> None:
    assert importlib.util.find_spec("numpy") is None, "this is not the environment without extras"
    with tempfile.TemporaryDirectory() as folder:
        for check in (check_names, check_command_line, check_console, check_broker, check_source_distribution):
            check(folder)
            print(f"✔ {check.__name__.removeprefix('check_').replace('_', ' ')}")


if __name__ == "__main__":
    main()
