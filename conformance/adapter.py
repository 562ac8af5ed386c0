"""The reference broker as a process of its own, optionally broken on purpose.

``python -m conformance.adapter [--mutant NAME ...] [--config YAML] [--port PORT]`` prints one line of JSON when ready,
``{"ready": true, "host": ..., "port": ..., "version": ..., "pid": ...}``, and ends when its standard input is closed,
so that nothing is left behind when its parent dies. In this process: :func:`reference_broker_endpoint`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from conformance.mutants import UnknownMutantError, applied
from conformance.targets.model import Endpoint
from reference_broker.broker import Broker
from reference_broker.config import BrokerConfig, ConfigError, ListenerConfig, load_config

USAGE_ERROR = 2


def broker_config(path: Path | None, port: int) -> BrokerConfig:
    """The configuration of ``path`` (or the defaults) with one listener on ``127.0.0.1:port``; 0 = any free port.

    Raises :class:`ConfigError`.
    """
    config = load_config(path) if path is not None else BrokerConfig()
    return msgspec.structs.replace(config, listeners=(ListenerConfig(port=port),))


@contextmanager
def reference_broker_endpoint(*mutants: str, config: BrokerConfig | None = None) -> Iterator[Endpoint]:
    """The reference broker in this process with mutants applied; both end with the block."""
    with applied(*mutants), Broker(config or broker_config(None, 0)) as broker:
        yield Endpoint(host=broker.host, port=broker.port)


def _version() -> str:
    try:
        return version("assay-mq")
    except PackageNotFoundError:
        return ""


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.adapter",
        description="Run the reference broker until standard input is closed; the first line of output says where.",
    )
    parser.add_argument("--mutant", action="append", default=[], metavar="NAME", help="break the broker (repeatable)")
    parser.add_argument("--config", type=Path, metavar="YAML", help="broker configuration; its listeners are replaced")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 = any free one")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run until standard input ends; returns the exit status."""
    arguments = _arguments(argv)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    try:
        config = broker_config(arguments.config, arguments.port)
        with applied(*arguments.mutant), Broker(config) as broker:
            ready = {"ready": True, "host": broker.host, "port": broker.port, "version": _version(), "pid": os.getpid()}
            print(json.dumps(ready), flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                while sys.stdin.buffer.read(4_096):
                    pass
    except (ConfigError, UnknownMutantError, OSError) as error:
        print(f"cannot start the reference broker: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
