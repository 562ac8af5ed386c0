"""The tests that others wrote for clients of AMQP 0.9.1, unchanged, on the reference broker and on RabbitMQ.

``others/suites.toml`` says where each suite comes from, how it is run, what is left out and what differs, and why. The
sources come when they are needed, into the folder that ``ASSAY_OTHERS`` names; without it all of this is passed over.
``./toxw run -e interop`` sets it. Most of these suites know no port but 5672, so it must be free.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from assay.conformance.targets import rabbitmq_node
from assay.reference_broker.auth import hash_password
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import (
    Amqp091Config,
    AuthConfig,
    BrokerConfig,
    ListenerConfig,
    ListenerProtocol,
    QueuesConfig,
    UserConfig,
)

HERE = Path(__file__).parent / "others"
FOLDER = os.environ.get("ASSAY_OTHERS", "")
PORT = 5672
SOURCE_S, START_S = 600.0, 180.0
JAVA, PIKA = "com.rabbitmq.client.test.functional.", "tests.acceptance."
"""What the page leaves out of names."""
BROKERS = ("reference", "rabbitmq")
RABBITMQ_FILES = {
    "rabbitmq.conf": f"""
listeners.tcp.1 = 127.0.0.1:{PORT}
listeners.tcp.2 = ::1:{PORT}
loopback_users = none
log.console = true
log.console.level = error
log.file = false
""",
    "enabled_plugins": "[].\n",
    "rabbitmq-env.conf": "",
}


class Odd(msgspec.Struct, frozen=True, kw_only=True):
    """A test that is left out, or fails."""

    test: str
    why: str
    brokers: tuple[str, ...] = ()


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """See ``suites.toml``."""

    command: list[str]
    timeout_s: int
    version: str = ""
    package: str = ""
    git: str = ""
    tag: str = ""
    sdist: str = ""
    requirements: list[str] = []
    needs: list[str] = []
    prepare: list[str] = []
    replaced: dict[str, str] = {}
    env: dict[str, str] = {}
    exclude_option: str = ""
    excluded: list[Odd] = []
    differs: list[Odd] = []
    varies: list[Odd] = []

    @property
    def release(self) -> str:
        return self.version or importlib.metadata.version(self.package)


SUITES = msgspec.convert(tomllib.loads((HERE / "suites.toml").read_text()), dict[str, Suite])


def run(command: list[str], where: Path, timeout_s: float, env: Mapping[str, str] = {}) -> str:
    """What it said, whatever its exit status was. Skips the test if there is no such command."""
    try:
        done = subprocess.run(
            command,
            cwd=where,
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        pytest.skip(f"{command[0]} is not installed")
    return done.stdout


def fetched(name: str, suite: Suite) -> Path:
    """The sources, as they were released."""
    release = suite.release
    source = Path(FOLDER).resolve() / f"{name}-{release}"
    if (source / ".whole").exists():
        return source
    shutil.rmtree(source, ignore_errors=True)
    source.parent.mkdir(parents=True, exist_ok=True)
    if suite.git:
        command = ["git", "clone", "-q", "--depth", "1", "--branch", suite.tag.format(version=release), suite.git]
        said = run([*command, str(source)], source.parent, SOURCE_S)
    else:
        wanted = suite.sdist.format(version=release)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", suite.package, wanted]
        archives = source.with_suffix(".sdist")
        shutil.rmtree(archives, ignore_errors=True)
        said = run([*_pip(source.parent), *command[3:], "-d", str(archives)], source.parent, SOURCE_S)
        if not hasattr(tarfile, "data_filter"):
            pytest.skip("unpacking what others packed safely needs Python 3.11.4")
        for archive in archives.glob("*.tar.gz"):
            shutil.unpack_archive(archive, archives, filter="data")
            (archives / archive.name.removesuffix(".tar.gz")).rename(source)
    if not source.exists():
        pytest.skip(f"the sources of {name} {release} cannot be had: {said.strip()[-200:]}")
    if suite.prepare:
        run(suite.prepare, source, SOURCE_S)
    if suite.requirements:
        python = source / ".venv" / "bin" / "python"
        run([sys.executable, "-m", "venv", str(source / ".venv")], source, SOURCE_S)
        wanted_all = [each.format(version=release) for each in suite.requirements]
        said = run([str(python), "-m", "pip", "install", "-q", *wanted_all], source, SOURCE_S)
        if "ERROR" in said:
            pytest.skip(f"what {name} {release} needs cannot be had: {said.strip()[-200:]}")
    for ours, theirs in suite.replaced.items():
        shutil.copy(HERE / ours, source / theirs)
    (source / ".whole").touch()
    return source


def _pip(folder: Path) -> list[str]:
    """Python's installer: the environment of the tests has none."""
    python = folder / ".pip" / "bin" / "python"
    if not python.exists():
        run([sys.executable, "-m", "venv", str(folder / ".pip")], folder, SOURCE_S)
    return [str(python), "-m", "pip"]


def outcomes(results: Path) -> dict[str, str]:
    """Test -> passed, failed or skipped, of all files in JUnit's format."""
    found: dict[str, str] = {}

    def read(node: ET.Element, path: tuple[str, ...]) -> None:
        for child in node:
            if child.tag == "testsuite":
                # Of pytest and surefire the class says where a test stands, of Node the suites around it.
                read(child, (*path, child.get("name", "")))
            elif child.tag == "testcase":
                place = child.get("classname", "")
                where = place if place != "test" else ".".join(path)
                tags = {each.tag for each in child}
                outcome = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
                name = f"{where}.{child.get('name')}" if where else str(child.get("name"))
                if outcome == "failed" or found.get(name) != "failed":
                    found[name] = outcome

    for file in results.glob("*.xml"):
        root = ET.parse(file).getroot()
        surefire = root.tag == "testsuite"
        read(root, () if not surefire else (root.get("name", ""),))
    return found


def command_of(name: str, suite: Suite, source: Path, results: Path) -> list[str]:
    excluded = [each.test for each in suite.excluded]
    joined = "".join([f",!{test}" for test in excluded])
    command = [
        part.format(
            python=source / ".venv" / "bin" / "python",
            results=results / f"{name}.xml",
            build=results / "target",
            here=HERE,
            source=source,
            version=suite.release,
            excluded=joined,
        )
        for part in suite.command
    ]
    if suite.exclude_option.startswith("--"):
        command += [f"{suite.exclude_option}={test}" for test in excluded]
    return command


def is_listening(host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, PORT), 1.0).close()
    except OSError:
        return False
    return True


@contextmanager
def reference() -> Iterator[None]:
    """With the user that all of them want, and room for the queues that they leave behind."""
    guest = UserConfig(username="guest", password_hash=hash_password(b"guest"))
    protocols = (ListenerProtocol.AMQP091,)
    hosts = ("127.0.0.1", "::1") if _has_ipv6() else ("127.0.0.1",)
    config = BrokerConfig(
        listeners=tuple([ListenerConfig(host=host, port=PORT, protocols=protocols) for host in hosts]),
        auth=AuthConfig(users=(guest,)),
        amqp091=Amqp091Config(max_message_bytes=64 << 20),
        queues=QueuesConfig(max_queues=20_000),
    )
    with Broker(config):
        yield


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@contextmanager
def rabbitmq(folder: Path) -> Iterator[None]:
    try:
        rabbitmq_node.find_home()
    except rabbitmq_node.NotInstalledError as missing:
        pytest.skip(str(missing))
    for name, text in RABBITMQ_FILES.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "assay.conformance.targets.rabbitmq_node", str(folder)]
    with (
        (folder / "output").open("wb") as output,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output) as node,
    ):
        try:
            ends_at = time.monotonic() + START_S
            while not is_listening() and node.poll() is None and time.monotonic() < ends_at:
                time.sleep(0.2)  # nothing tells when it listens
            if not is_listening():
                told = (folder / "output").read_text(errors="replace")[-500:]
                pytest.fail(f"RabbitMQ is installed and does not start: {told}")
            yield
        finally:
            assert node.stdin is not None
            node.stdin.close()
            node.wait(START_S)
            while is_listening() and time.monotonic() < ends_at + START_S:
                time.sleep(0.2)  # nobody but the port tells when the last of its processes has gone


def test_the_page_tells_what_is_left_out_and_what_differs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "interop-amqp091.md").read_text()
    for suite in SUITES.values():
        for odd in (*suite.excluded, *suite.differs, *suite.varies):
            name = odd.test.rpartition("/")[2].removeprefix(JAVA).removeprefix(PIKA)
            assert f"`{name}` |" in page
            assert odd.why in page


@pytest.mark.peer
@pytest.mark.timeout(3_600)
@pytest.mark.skipif(not FOLDER, reason="ASSAY_OTHERS names no folder for the sources of others (tox: interop)")
@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("name", list(SUITES))
def test_others_suites(name: str, broker: str, tmp_path: Path, record_property: Any) -> None:
    suite = SUITES[name]
    for needed in suite.needs:
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is not installed")
    if is_listening():
        pytest.skip(f"port {PORT} is taken")
    source = fetched(name, suite)
    results = tmp_path / "results"
    results.mkdir()
    node = tmp_path / "node"
    node.mkdir()
    with reference() if broker == "reference" else rabbitmq(node):
        said = run(command_of(name, suite, source, results), source, suite.timeout_s, suite.env)
    for reports in (results / "target" / "surefire-reports").glob("*.xml"):
        shutil.copy(reports, results)
    found = outcomes(results)
    assert found, said[-4_000:]
    counts = Counter(found.values())
    line = f"{name} {suite.release} on {broker}: " + ", ".join(f"{counts[each]} {each}" for each in sorted(counts))
    record_property("counts", line)
    print(line)
    failed = {test for test, outcome in found.items() if outcome == "failed"}
    expected = {odd.test for odd in suite.differs if broker in odd.brokers}
    failed = {test for test in failed if not test.endswith(tuple([odd.test for odd in suite.varies]))}
    told = f"{line}\n{said[-8_000:]}"
    assert failed <= expected, f"{sorted(failed - expected)} failed\n{told}"
    assert expected <= failed, f"{sorted(expected - failed)} differs no more: take it out of suites.toml\n{told}"
