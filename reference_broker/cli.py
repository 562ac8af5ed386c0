"""``assay serve`` and its small helpers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from assay.reference_broker.auth import (
    Authenticator,
    ScramError,
    hash_password,
    hash_token,
    new_token,
    scram_credentials,
)
from assay.reference_broker.broker import new_event_loop
from assay.reference_broker.config import (
    BrokerConfig,
    ConfigError,
    ListenerConfig,
    ListenerProtocol,
    LogConfig,
    LogLevel,
    Scope,
    check_config,
    load_config,
)
from assay.reference_broker.config_files import read_named_files
from assay.reference_broker.queues import LogError, QueueOpenError
from assay.reference_broker.quirks import find_quirks
from assay.reference_broker.server.collector import tune_collector
from assay.reference_broker.server.file_limit import raise_file_limit
from assay.reference_broker.server.listeners import check_extras
from assay.reference_broker.server.log_lines import log_to_stderr
from assay.reference_broker.server.readiness import NotReadyError
from assay.reference_broker.server.running import RunningBroker
from assay.reference_broker.server.tls import check_listeners

log = logging.getLogger("assay.broker")
USAGE_ERROR = 2


def serve(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="YAML file; see docs/configuration.md. Unknown keys are refused."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Replaces the first listener's host. Default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Replaces the first listener's port; 0 = any free port.")] = None,
    http_port: Annotated[
        int | None,
        typer.Option(
            help="Serve HTTP here, too, on the first listener's host: for the commands that operate a broker."
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the durable queues. Without it queues live in memory.")
    ] = None,
    quirk: Annotated[
        list[str] | None,
        typer.Option(help="Imitate this broker's deviations, or a single one; see assay quirks. Repeatable."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only check the configuration.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log who comes and goes, too.")] = False,
) -> None:
    """Run the reference broker until Ctrl-C or SIGTERM. SIGHUP reads users, access rules and tenants again.

    Prints "ready" and the addresses once a real handshake has passed. Without users in the configuration, anonymous
    clients are accepted on loopback addresses only. Clients that are refused or cut are logged on standard error, in
    bounded numbers.
    """
    log_to_stderr(LogConfig())

    def read() -> BrokerConfig:
        settings = BrokerConfig()
        if config is not None:
            settings = read_named_files(load_config(config), config.parent)
        Authenticator(settings.auth, b"")  # for its checks
        settings = _override(settings, host, port, http_port, data_dir, quirk or [])
        check_config(settings, "the command line")
        find_quirks(settings.quirks)  # for its check
        check_listeners(settings)
        check_extras(protocol for listener in settings.listeners for protocol in listener.protocols)
        return settings

    try:
        settings = read()
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(USAGE_ERROR) from error
    if check:
        typer.echo("the configuration is fine")
        return
    log_to_stderr(msgspec.structs.replace(settings.log, level=LogLevel.DEBUG) if verbose else settings.log)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        raise typer.Exit(runner.run(_serve(settings, read)))


def _override(
    settings: BrokerConfig,
    host: str | None,
    port: int | None,
    http_port: int | None,
    data_dir: Path | None,
    quirks: list[str],
) -> BrokerConfig:
    first, *rest = settings.listeners or (ListenerConfig(),)
    if host is not None:
        first = msgspec.structs.replace(first, host=host)
    if port is not None:
        first = msgspec.structs.replace(first, port=port)
    if http_port is not None:
        web = ListenerConfig(host=first.host, port=http_port, tls=first.tls, protocols=(ListenerProtocol.HTTP,))
        rest.append(web)
    folder = settings.data_dir if data_dir is None else str(data_dir)
    return msgspec.structs.replace(
        settings, listeners=(first, *rest), data_dir=folder, quirks=(*settings.quirks, *quirks)
    )


def _check_room(settings: BrokerConfig) -> None:
    """Take as many open files as there may be, and say so when the connections allowed do not fit."""
    room = raise_file_limit()
    wanted = sum(listener.max_connections for listener in settings.listeners)
    if room is not None and room < wanted:
        typer.echo(
            f"note: {room} connections fit into the limit on open files, {wanted} are allowed: raise it (ulimit -n), "
            "or lower max_connections",
            err=True,
        )


def _reload(broker: RunningBroker, read: Callable[[], BrokerConfig]) -> None:
    """SIGHUP. What cannot be read or is wrong changes nothing."""
    if not broker.is_running:
        return
    try:
        broker.reload(read())
    except (OSError, ValueError) as error:
        log.error("the configuration is not read again, the broker goes on as it was: %s", error)


async def _serve(settings: BrokerConfig, read: Callable[[], BrokerConfig]) -> int:
    broker = RunningBroker(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop.set)
    if hasattr(signal, "SIGHUP"):
        with contextlib.suppress(NotImplementedError):
            # It would end the process; before there is anything to reload it means nothing.
            loop.add_signal_handler(signal.SIGHUP, _reload, broker, read)
    try:
        await broker.start()
    except (OSError, LogError, QueueOpenError, NotReadyError, ConfigError) as error:
        typer.echo(f"error: the broker cannot start: {error}", err=True)
        return 1
    broker.driver.read_again = lambda on_done: broker.reload(read(), on_done)
    tune_collector()
    _check_room(settings)
    if settings.quirks:
        count = len(find_quirks(settings.quirks))
        typer.echo(f"imitating {count} deviations of real brokers: {', '.join(settings.quirks)}", err=True)
    for address in broker.addresses:
        typer.echo(f"ready {address.url}")
    await stop.wait()
    await broker.stop()
    return 0


def hash_password_command(
    scram: Annotated[
        bool,
        typer.Option("--scram", help="Print credentials for SCRAM-SHA-256 (auth.users[].scram_sha_256) instead."),
    ] = False,
) -> None:
    """Read a password, or the first line of what is piped in, and print what to put into the configuration.

    That is auth.users[].password_hash, or with --scram auth.users[].scram_sha_256.

    In a password file (auth.password_file) it stands behind the user name and a colon: alice:scrypt$... A user who
    logs in both ways has two lines there.
    """
    if sys.stdin.isatty():
        password = typer.prompt("password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        typer.echo("error: the password is empty", err=True)
        raise typer.Exit(USAGE_ERROR)
    try:
        typer.echo(scram_credentials(password) if scram else hash_password(password.encode()))
    except ScramError as error:
        typer.echo(f"error: SCRAM cannot use this password: {error}", err=True)
        raise typer.Exit(USAGE_ERROR) from error


def token_command(
    name: Annotated[str, typer.Argument(help="What to call it: for people, and for the log.")],
    user: Annotated[str, typer.Option(help="The user of auth.users that it stands for.")],
    scope: Annotated[
        list[Scope] | None, typer.Option(help="What its bearer may do: read, write, admin. Repeatable; default read.")
    ] = None,
    expires_in_days: Annotated[float | None, typer.Option(min=0.0, help="Without it, it does not expire.")] = None,
) -> None:
    """Make a token for HTTP, and print it; on standard error, what to put into the configuration (auth.tokens).

    The token itself is not stored anywhere: only its hash is.
    """
    token = new_token()
    entry: dict[str, object] = {
        "name": name,
        "user": user,
        "hash": hash_token(token),
        "scopes": [each.value for each in scope or [Scope.READ]],
    }
    if expires_in_days is not None:
        entry["expires_at"] = int(time.time() + expires_in_days * 86_400)
    typer.echo(f"# below auth.tokens:\n- {msgspec.json.encode(entry).decode()}", err=True)
    typer.echo(token)
