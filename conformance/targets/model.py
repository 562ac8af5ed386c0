"""The target file: strict structs, the shipped files beside this module, and the capabilities a target can have."""

from __future__ import annotations

import base64
import functools
import os
import re
import ssl
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec

from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.integrity import why

TARGET_SCHEMA: Literal["assay.target/1"] = "assay.target/1"

CapabilityValue = bool | int | str

_MAVEN_ARTIFACT = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+", re.ASCII)

CAPABILITIES: dict[str, str] = {
    "mqtt311": "speaks MQTT 3.1.1 (probed)",
    "mqtt5": "speaks MQTT 5.0 (probed)",
    "qos1": "takes and delivers QoS 1 (probed from Maximum QoS)",
    "qos2": "takes and delivers QoS 2 (probed from Maximum QoS)",
    "retain": "keeps retained messages (probed from Retain Available)",
    "wildcards": "takes wildcard filters (probed from Wildcard Subscription Available)",
    "shared": "takes $share filters (probed from Shared Subscription Available)",
    "subscription_identifiers": "takes subscription identifiers (probed from Subscription Identifiers Available)",
    "persistent_sessions": "keeps sessions after the connection has ended",
    "resends_after_s": "how long after a resume it may send again what was not acknowledged, 0 = at once (number)",
    "receive_maximum": "in-flight QoS 1 and 2 publishes it takes (probed, number)",
    "topic_alias_maximum": "topic aliases it takes (probed, number)",
    "maximum_packet_size": "largest packet it takes, 0 = no limit stated (probed, number)",
    "server_keep_alive": "keep alive it imposes in seconds, 0 = the client's (probed, number)",
    "websocket_url": "where it speaks MQTT over WebSocket, ws://host:port/path (text)",
    "authentication_method": "an enhanced authentication method it knows (text)",
    "authentication_username": "a user of that method (text)",
    "authentication_password": "the password of that user (text)",
    "forbidden_topic": "a topic to which it lets nobody publish (text; configure the broker so)",
    "refused_topic": "a topic filter whose subscription it refuses (text; configure the broker so)",
    "refused_client_id": "a client identifier that it refuses although others may accept it (text)",
    "refused_username": "a user name that it refuses, whatever the password (text)",
    "amqp091": "speaks AMQP 0.9.1 (probed where it is declared, or nothing else is spoken)",
    "amqp091_url": "where it speaks AMQP 0.9.1, if not at its endpoint, amqp://host:port (text)",
    "amqp091_shares_its_port": "other protocols are spoken there, too, by what a client sends first",
    "amqp091_second_vhost": "a second virtual host that the user may open, or the one below (text)",
    "amqp091_second_username": "who opens the second virtual host, if not the user (text)",
    "amqp091_second_password": "the password of that user (text)",
    "maximum_message_bytes": "largest AMQP message that it takes, 0 = not known (number; configure the broker so)",
    "publisher_confirms": "has confirm.select (probed from server-properties)",
    "exchange_exchange_bindings": "has exchange.bind (probed from server-properties)",
    "basic_nack": "has basic.nack (probed from server-properties)",
    "consumer_cancel_notify": "tells consumers that their queue is gone (probed from server-properties)",
    "consumer_priorities": "knows x-priority of consumers (probed from server-properties)",
    "authentication_failure_close": "tells of bad credentials (probed from server-properties)",
    "per_consumer_qos": "counts a prefetch per consumer (probed from server-properties)",
    "direct_reply_to": "knows amq.rabbitmq.reply-to (probed from server-properties)",
    "http": "speaks HTTP (probed where http_url is declared)",
    "http_url": "where it speaks HTTP, http://host:port (text)",
    "http_queues": "has the queue routes below /api/v1 (probed)",
    "http_topics": "has GoQueue's routes: topics, groups, messages, producers (probed)",
    "http_schemas": "has the routes of a schema registry (probed)",
    "http_bridge": "has FluxMQ's bridge, POST /publish (probed)",
    "http_traces": "has GoQueue's traces, GET /traces (probed)",
    "http_views": "has what our console asks beside these: /api/v1/whoami, /log, /stats/queues (probed)",
    "http_wait_s": "seconds that a request which consumes may ask to wait (probed up to 50, number)",
    "http_batch": "messages that a request may ask for or bring (probed up to 1000, number)",
    "grpc": "speaks gRPC (probed where grpc_url is declared)",
    "grpc_url": "where it speaks gRPC, grpc://host:port (text)",
    "grpc_fluxmq": "has fluxmq.queue.v1.QueueService (probed)",
    "grpc_goqueue": "has the services of goqueue.v1 (probed)",
    "queues": "durable queues addressed as $queue/<name> with $ack, $nack and $reject",
    "clock": "its clock is moved by a publish to $admin/clock/advance (the reference broker)",
    "settings": "a case may start it with settings of its own (the reference broker)",
    "restart": "a case may kill it and start it again on its data (declared by the table [restart])",
    "data_dir": "the folder of its data, below {dir}: a case may damage it while the broker is dead (text)",
    "persistence": "sessions, messages and retained messages that it acknowledged survive such a restart",
}
"""Every capability a target file may declare and a case may require."""

DEFAULT_CAPABILITIES: dict[str, CapabilityValue] = {
    "qos1": True,
    "qos2": True,
    "retain": True,
    "wildcards": True,
    "shared": True,
    "subscription_identifiers": True,
    "persistent_sessions": True,
    "resends_after_s": 0,
    "receive_maximum": 65_535,
    "topic_alias_maximum": 0,
    "maximum_packet_size": 0,
    "server_keep_alive": 0,
    "websocket_url": "",
    "authentication_method": "",
    "authentication_username": "",
    "authentication_password": "",
    "forbidden_topic": "",
    "refused_topic": "",
    "refused_client_id": "",
    "refused_username": "",
    "amqp091": False,
    "amqp091_url": "",
    "amqp091_shares_its_port": False,
    "amqp091_second_vhost": "",
    "amqp091_second_username": "",
    "amqp091_second_password": "",
    "maximum_message_bytes": 0,
    "publisher_confirms": False,
    "exchange_exchange_bindings": False,
    "basic_nack": False,
    "consumer_cancel_notify": False,
    "consumer_priorities": False,
    "authentication_failure_close": False,
    "per_consumer_qos": False,
    "direct_reply_to": False,
    "http": False,
    "http_url": "",
    "http_queues": False,
    "http_topics": False,
    "http_schemas": False,
    "http_bridge": False,
    "http_traces": False,
    "http_views": False,
    "http_wait_s": 50,
    "http_batch": 1_000,
    "grpc": False,
    "grpc_url": "",
    "grpc_fluxmq": False,
    "grpc_goqueue": False,
    "queues": False,
    "clock": False,
    "settings": False,
    "restart": False,
    "data_dir": "",
    "persistence": False,
}
"""What holds of a target that neither declares nor shows otherwise."""

DENIED_BY_CONNACK = ("qos1", "qos2", "retain", "wildcards", "shared", "subscription_identifiers")
"""Capabilities that a 5.0 CONNACK may deny, and a 3.1.1 server must have."""

PRIVATE = frozenset({"clock", "settings", "restart"})
"""Capabilities of a broker that a case has to itself."""
SECRETS = frozenset({"authentication_password"})
"""Capabilities that a report does not show."""


_MAX_PASSWORD_CHARACTERS = 65_536


class TargetError(ValueError):
    """A target file is wrong or cannot be found; the text names the file and the key, and says what to do."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Tls(_Part, frozen=True, kw_only=True):
    """TLS on the way to the broker. Relative paths in a target file are below the folder of that file."""

    ca_file: str = ""
    """Certificates (PEM) of the authorities that are trusted; empty = those of the system."""
    certificate_file: str = ""
    """Client certificate (PEM), for a broker that wants one."""
    key_file: str = ""
    """Its key, unless it is in the same file."""
    server_name: str = ""
    """The name that the broker's certificate must hold; empty = the host."""
    insecure: bool = False
    """Any certificate will do: only for a broker and a network that you trust anyway."""

    def below(self, folder: Path) -> Tls:
        """The same with paths that are relative to ``folder``."""
        paths = {name: getattr(self, name) for name in ("ca_file", "certificate_file", "key_file")}
        return msgspec.structs.replace(self, **{name: str(folder / path) for name, path in paths.items() if path})

    def check(self, where: str) -> None:
        """Raises :class:`TargetError` for files that cannot be used."""
        try:
            self.context()
        except (OSError, ValueError) as error:
            files = ", ".join(file for file in (self.ca_file, self.certificate_file, self.key_file) if file)
            message = f"{where}: TLS files ({files}) cannot be used: {error}"
            raise TargetError(message) from error

    def context(self) -> ssl.SSLContext:
        """Raises :class:`OSError` (of which those of TLS are a kind) for files that cannot be used."""
        return _tls_context(self)


@functools.cache
def _tls_context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca_file or None)
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.certificate_file:
        # An encrypted key fails here; without a function for its password, one would be asked for at the terminal.
        context.load_cert_chain(tls.certificate_file, tls.key_file or None, password=lambda: "")
    elif tls.key_file:
        message = "a key needs its certificate"
        raise ValueError(message)
    return context


class Endpoint(_Part, frozen=True, kw_only=True):
    """Where a broker listens, and the credentials it wants."""

    host: str = "127.0.0.1"
    port: int = 1883
    username: str | None = None
    password: str | None = None
    password_env: str = ""
    """Environment variable that holds the password."""
    password_file: str = ""
    """File whose first line is the password; a relative path is below the folder of the target file."""
    tls: Tls | None = None

    @property
    def basic(self) -> dict[str, str]:
        """The header of HTTP Basic (RFC 7617) for its credentials; empty without any."""
        if self.username is None:
            return {}
        secret = base64.b64encode(f"{self.username}:{self.password or ''}".encode()).decode()
        return {"authorization": f"Basic {secret}"}

    @property
    def server_name(self) -> str | None:
        """The name that the certificate must hold; None without TLS."""
        return None if self.tls is None else self.tls.server_name or self.host

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        return None if self.tls is None else self.tls.context()


def read_password(variable: str, path: str) -> str | None:
    """The password in an environment variable or the first line of a file; None if neither is named.

    Raises :class:`TargetError`.
    """
    if variable:
        if variable not in os.environ:
            message = f"the password is wanted from the environment variable {variable}, which is not set"
            raise TargetError(message)
        return os.environ[variable]
    if not path:
        return None
    try:
        with Path(path).open(encoding="utf-8") as file:
            return file.readline(_MAX_PASSWORD_CHARACTERS).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read the password file {path}: {why(error)}"
        raise TargetError(message) from error


class StartHook(_Part, frozen=True, kw_only=True):
    """How to start the broker.

    In ``command``, ``files`` and the texts of the capabilities, ``{port}``, ``{websocket_port}``, ``{http_port}``,
    ``{grpc_port}`` (all free), ``{spare_port}`` (free too, for what the broker says to itself), ``{dir}``, ``{python}``
    and ``{packages}`` (where ``npm`` and ``maven`` are installed) are filled in.
    """

    command: tuple[str, ...]
    files: dict[str, str] = {}
    """Files to write into the temporary folder ``{dir}`` first, by name."""
    port_from: Literal["free", "stdout"] = "free"
    """``free``: the bench picks the ports. ``stdout``: the first line is JSON with ``host``, ``port`` and, perhaps,
    ``websocket_port``, ``http_port`` and ``grpc_port``."""
    ready_timeout_s: float = 60.0
    """Time until an MQTT handshake must succeed; a busy machine needs some of it."""
    stop: tuple[str, ...] = ()
    """Command that stops it; without one the process is terminated."""
    version: tuple[str, ...] = ()
    """Command whose output holds the version number."""
    advice: str = ""
    """What to do where the broker is not installed."""
    npm: tuple[str, ...] = ()
    """npm packages that it is made of; ``assay conformance peers`` installs them into ``{packages}``."""
    maven: tuple[str, ...] = ()
    """Maven artifacts (``group:artifact:version``) that it is made of, the broker first; ``assay conformance peers``
    copies them and what they need into ``{packages}/lib``. The version of the first is that of the broker."""


class RestartHook(_Part, frozen=True, kw_only=True):
    """How a broker ends suddenly and begins again on its data, again and again.

    One with a ``[start]`` table is sent ``signal`` (all processes of its group are), and started again in the same
    ``{dir}`` on the same ports, without writing ``files`` anew; any other one is restarted by ``command``.
    """

    signal: Literal["KILL", "TERM"] = "KILL"
    """``TERM`` for a broker that promises to keep only what it could write down in peace."""
    command: tuple[str, ...] = ()
    """Kills a broker that runs already, and starts it again. Other cases do not run meanwhile."""
    timeout_s: float = 60.0
    """Of the command, and again until an MQTT handshake must succeed."""


class ExpectedFailure(_Part, frozen=True, kw_only=True):
    """A known deviation: the case is reported as ``xfail``, and as ``xpass`` (failing the run) once it passes."""

    case: str
    reason: str
    link: str
    """Where it is reported or discussed: in public, or on a page of ours."""
    sometimes: bool = False
    """Chance decides whether it shows: the case may pass as well."""


class ExpectedStep(_Part, frozen=True, kw_only=True):
    """A step that fails now and then, whatever a case is about: ``xfail`` where it is booked."""

    statement: str
    """One that the step rests on."""
    reason: str
    link: str


class Target(_Part, frozen=True, kw_only=True):
    """One target file."""

    schema: Literal["assay.target/1"] = TARGET_SCHEMA
    name: str
    description: str = ""
    endpoint: Endpoint = Endpoint()
    """Of a broker that already runs; with ``start``, only the credentials are read."""
    capabilities: dict[str, CapabilityValue] = {}
    start: StartHook | None = None
    restart: RestartHook | None = None
    broker_per_case: bool = False
    """Each case gets a broker of its own: for one in which a case leaves traces that no client can remove."""
    expect_fail: tuple[ExpectedFailure, ...] = ()
    expect_step: tuple[ExpectedStep, ...] = ()
    required: tuple[str, ...] = ()
    """Patterns (``mqtt311/*``) of cases that must be run: ``unsupported`` counts as a failure for them."""
    optional: tuple[str, ...] = ()
    """Patterns of cases that ``required`` does not mean."""

    @property
    def is_ours(self) -> bool:
        """The reference broker, started by our adapter."""
        return self.start is not None and "assay.conformance.adapter" in self.start.command

    def expected_failure(self, case_id: str) -> ExpectedFailure | None:
        """The entry for this case."""
        return next((entry for entry in self.expect_fail if entry.case == case_id), None)

    def surely_fails(self, case_id: str) -> bool:
        """Whether a failure is expected each time. It accuses nobody of anything new, so that less is waited for it."""
        entry = self.expected_failure(case_id)
        return entry is not None and not entry.sometimes


def _problems(target: Target) -> list[str]:
    problems = []
    for name, value in target.capabilities.items():
        known = DEFAULT_CAPABILITIES.get(name, True)
        if name not in CAPABILITIES:
            problems.append(f"capabilities.{name} is unknown; known are {', '.join(CAPABILITIES)}")
        elif type(value) is not type(known):
            problems.append(f"capabilities.{name} must be of type {type(known).__name__}, not {value!r}")
        elif name in ("authentication_username", "authentication_password") and not str(value).isascii():
            problems.append(f"capabilities.{name} must be ASCII: the suite does not prepare names and passwords")
        elif name == "data_dir" and value and (target.start is None or not str(value).startswith("{dir}")):
            problems.append("capabilities.data_dir must lie below {dir}, the folder of a broker with a [start] table")
        elif name == "http_url" and value and not str(value).startswith(("http://", "https://")):
            problems.append(f"capabilities.http_url must begin with http:// or https://, not {value!r}")
        elif name == "grpc_url" and value and not str(value).startswith("grpc://"):
            problems.append(f"capabilities.grpc_url must begin with grpc://, not {value!r}")
        elif name == "websocket_url" and value and not str(value).startswith(("ws://", "wss://")):
            problems.append(f"capabilities.websocket_url must begin with ws:// or wss://, not {value!r}")
    if not target.is_ours and any(target.capabilities.get(name, False) for name in PRIVATE - {"restart"}):
        problems.append(f"capabilities: {', '.join(sorted(PRIVATE - {'restart'}))} are those of the reference broker")
    if not target.is_ours and target.capabilities.get("restart", False) and target.restart is None:
        problems.append("capabilities.restart needs a [restart] table that says how")
    if target.restart is not None and (target.start is None) is not bool(target.restart.command):
        problems.append("restart.command is for a broker that is not started by a [start] table, which needs one")
    for index, step in enumerate(target.expect_step):
        if not step.statement.strip() or not step.reason.strip() or not step.link.strip():
            problems.append(f"expect_step[{index}] needs a statement, a reason and a link")
    seen: set[str] = set()
    for index, entry in enumerate(target.expect_fail):
        if not entry.reason.strip() or not entry.link.strip():
            problems.append(f"expect_fail[{index}] ({entry.case}) needs a reason and a link")
        if entry.case in seen:
            problems.append(f"expect_fail[{index}]: {entry.case} is listed twice")
        seen.add(entry.case)
    if target.broker_per_case and target.start is None:
        problems.append("broker_per_case needs a [start] table")
    if target.start is not None and not target.start.command:
        problems.append("start.command is empty")
    problems.extend(
        f"start.maven: {artifact!r} is not group:artifact:version"
        for artifact in (target.start.maven if target.start is not None else ())
        if not _MAVEN_ARTIFACT.fullmatch(artifact)
    )
    endpoint = target.endpoint
    if sum((endpoint.password is not None, bool(endpoint.password_env), bool(endpoint.password_file))) > 1:
        problems.append("endpoint: password, password_env and password_file exclude each other")
    if endpoint.username is None and (endpoint.password is not None or endpoint.password_env or endpoint.password_file):
        problems.append("endpoint: a password needs a username")
    if not 0 < target.endpoint.port <= 65_535:
        problems.append("endpoint.port must be 1 to 65535")
    return problems


def parse_target(text: str, *, where: str = "target") -> Target:
    """Check the text of a target file. Raises :class:`TargetError`."""
    try:
        target = msgspec.toml.decode(text, type=described(Target))
    except msgspec.MsgspecError as error:
        message = f"{where}: {error}"
        raise TargetError(message) from error
    if target.restart is not None:
        target = msgspec.structs.replace(target, capabilities={"restart": True, **target.capabilities})
    problems = _problems(target)
    if problems:
        message = f"{where}: " + "; ".join(problems)
        raise TargetError(message)
    return target


def shipped_targets() -> list[str]:
    """Names of the target files of this package."""
    return sorted(entry.name[:-5] for entry in files(__package__).iterdir() if entry.name.endswith(".toml"))


def load_target(name_or_path: str) -> Target:
    """A shipped target by name, or a file by path. Raises :class:`TargetError`."""
    path = Path(name_or_path)
    if path.suffix == ".toml":
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            message = f"cannot read the target file {path}: {why(error)}"
            raise TargetError(message) from error
        return _with_files(parse_target(text, where=str(path)), path)
    if name_or_path not in shipped_targets():
        message = (
            f"unknown target {name_or_path!r}: use one of {', '.join(shipped_targets())}, the path of a .toml file, "
            "or --host and --port of a broker that runs"
        )
        raise TargetError(message)
    file = files(__package__).joinpath(f"{name_or_path}.toml")
    return parse_target(file.read_text(encoding="utf-8"), where=name_or_path)


def _with_files(target: Target, path: Path) -> Target:
    """The target with what its endpoint names: the password, and the paths of TLS files."""
    endpoint = target.endpoint
    if endpoint.password_file:
        endpoint = msgspec.structs.replace(endpoint, password_file=str(path.parent / endpoint.password_file))
    password = read_password(endpoint.password_env, endpoint.password_file)
    if password is not None:
        endpoint = msgspec.structs.replace(endpoint, password=password, password_env="", password_file="")
    if endpoint.tls is not None:
        tls = endpoint.tls.below(path.parent.absolute())
        tls.check(str(path))
        endpoint = msgspec.structs.replace(endpoint, tls=tls)
    return msgspec.structs.replace(target, endpoint=endpoint)


def hosted_target(host: str, port: int) -> Target:
    """A target without a file: a broker that already listens on ``host:port``."""
    return Target(name=f"{host}:{port}", endpoint=Endpoint(host=host, port=port))
