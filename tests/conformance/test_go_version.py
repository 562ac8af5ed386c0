"""The version of a Go program is read from what Go wrote into it; nothing is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from assay.conformance.targets import StartHook, Target, load_target
from assay.conformance.targets.go_version import module_version
from assay.conformance.targets.process import installed_version

BUILD_INFO = (
    b"\x7fELF\0\0path\texample.org/a/cmd\nmod\texample.org/a\tv1.2.3\th1:x=\ndep\texample.org/b\tv9.9.9\th1:y=\n\0"
)


def put(folder: Path, name: str, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / name
    program.write_bytes(content)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_it_is_that_of_the_main_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "broker", BUILD_INFO, monkeypatch)
    assert module_version("broker") == "1.2.3"


def test_a_program_built_without_its_version_is_there_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FluxMQ, built with ``-buildvcs=false``, was said not to be installed."""
    put(tmp_path, "broker", BUILD_INFO.replace(b"v1.2.3", b"(devel)"), monkeypatch)
    assert module_version("broker") == "(devel)"
    script = f"#!/bin/sh\nexec {sys.executable} -m assay.conformance.targets.go_version broker\n"
    put(tmp_path, "asked", script.encode(), monkeypatch)
    target = Target(name="t", start=StartHook(command=("broker",), version=(str(tmp_path / "asked"),)))
    assert installed_version(target) == "(devel)"


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\nmod\texample.org/a\t\n"])
def test_a_program_that_tells_nothing_has_none(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "broker", content, monkeypatch)
    assert module_version("broker") == ""


@pytest.mark.parametrize("target", ["mochi", "fluxmq-v3", "fluxmq-v5"])
def test_the_command_of_the_target_files_says_it(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = load_target(target).start
    assert hook is not None
    python, *arguments = hook.version
    assert python == "{python}"
    monkeypatch.setenv("PATH", str(tmp_path))
    command = [sys.executable, *arguments]
    assert subprocess.run(command, check=False, capture_output=True, timeout=30).returncode == 1
    put(tmp_path, hook.command[0], BUILD_INFO, monkeypatch)
    assert subprocess.run(command, check=True, capture_output=True, timeout=30).stdout == b"1.2.3\n"
