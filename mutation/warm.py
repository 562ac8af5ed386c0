"""A Python that has started already: ``python -m mutation.warm`` forks a process for each command that it is given.

Starting Python, the broker, pytest and hundreds of tests takes seconds; a fork of a process that has imported all that
takes milliseconds. The first line on standard input is a :class:`Preload`; each line after it a :class:`Command`, run
as ``python ARGUMENTS`` would. Answers, a line of JSON each: ``{}`` when all is imported; for a command ``{"pid": N}``,
then ``{"status": N}`` when it has ended. The forked process has a session of its own: all it starts ends with it.

A mutant is planted in the forked process (:mod:`mutation.planting`); one that cannot be is run by a Python that is
started for it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import resource
import runpy
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType

import msgspec

from mutation import probes
from mutation.planting import plant

_MEMORY_BYTES = 6 * 2**30
_FILE_BYTES = 2**30
PYTEST_OPTIONS = ("-q", "-p", "mutation.contexts", "-p", "no:cacheprovider", "--no-header", "--assert=plain")
"""pytest would rewrite the assertions of the broker, too, since it has a plugin, and load it past the mutant."""


class Preload(msgspec.Struct, frozen=True, kw_only=True):
    """What is imported before the first command."""

    packages: tuple[str, ...] = ()
    """With all their modules."""
    tests: tuple[str, ...] = ()
    """Files of pytest."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What one process does, and its limits: a mutant may compute, ask for memory, or write without end."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    output: str
    """File that gets what it prints."""
    processor_s: int
    """Of the processor."""
    mutant: str = ""
    """File of :class:`mutation.planting.Planted`; empty: none."""
    ran_at_import: bool = False
    """Whether what the mutant changes is executed when the broker is imported."""


def limit(processor_s: int) -> None:
    """Limits of this process, and of those that it starts."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    # Where both limits are one the kernel kills at once, and nobody can tell that it was for the time.
    resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))


def import_all(*packages: str) -> None:
    """The packages, with all their modules but those that need an extra which is not installed."""
    for package in packages:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                try:
                    importlib.import_module(module.name)
                except ModuleNotFoundError as error:
                    if (error.name or "").startswith("assay"):
                        raise


def _preload(preload: Preload) -> list[FunctionType]:
    """All functions that there are then."""
    gc.disable()  # nothing of what is imported is garbage, and there is more to look through each time
    probes.begin(probes.IMPORT)
    import_all(*preload.packages)
    probes.begin("")
    if preload.tests:
        import pytest

        pytest.main([*PYTEST_OPTIONS, "--collect-only", *preload.tests])
    gc.collect()
    found = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    gc.freeze()  # what the collector looks at is copied for each process
    gc.enable()
    return found


def _run(command: Command, functions: Sequence[FunctionType]) -> int:
    """In the forked process. Returns the exit status."""
    limit(command.processor_s)
    os.environ.update(command.environment)
    probes.begin(os.environ.get(probes.CHECK, ""))
    first, *rest = command.arguments
    swapped = not command.mutant or plant(Path(command.mutant), functions, ran_at_import=command.ran_at_import)
    if not swapped or first != "-m":
        os.execv(sys.executable, [sys.executable, *command.arguments])  # noqa: S606 - the same Python
    sys.argv = rest
    try:
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, int) or ended.code is None:
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    return 0


def _child(command: Command, functions: Sequence[FunctionType]) -> None:
    """All of the life of a forked process."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with Path(os.devnull).open("rb") as nothing, Path(command.output).open("ab") as sink:
            os.dup2(nothing.fileno(), 0)
            os.dup2(sink.fileno(), 1)
            os.dup2(sink.fileno(), 2)
        status = _run(command, functions)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Until standard input ends."""
    # What is printed while tests are collected is no answer.
    answers = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    requests = os.fdopen(os.dup(0))

    def answer(**values: int) -> None:
        try:
            answers.write(json.dumps(values) + "\n")
            answers.flush()
        except BrokenPipeError:
            os._exit(1)  # nobody is there any more

    functions = _preload(msgspec.json.decode(requests.readline(), type=Preload))
    answer()
    for line in requests:
        command = msgspec.json.decode(line, type=Command)
        pid = os.fork()
        if pid == 0:
            os.close(answers.fileno())
            os.close(requests.fileno())
            _child(command, functions)
        answer(pid=pid)
        answer(status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    main()
