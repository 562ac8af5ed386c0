"""Who may import whom: the table of ARCHITECTURE.md, enforced on the source.

Modules are named by their place in the repository: ``sim.kernel`` is what code imports as ``assay.sim.kernel``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "assay",
    "reference_broker",
    "sim",
    "conformance",
    "loadtests",
    "faults",
    "spark_analysis",
    "reports",
    "mutation",
)
TRACE = "reference_broker.trace"
DESCRIBED = "reference_broker.trace.described"
CONFIG = "reference_broker.config"
ROUTING = "reference_broker.routing"
QUEUES = "reference_broker.queues"
CORE = "reference_broker.core"
STORAGE = "reference_broker.storage"
MQTT = "reference_broker.mqtt"
AMQP091 = "reference_broker.amqp091"
CONFIG_MQTT = "reference_broker.config_mqtt"
CONFIG_LISTENERS = "reference_broker.config_listeners"
CONFIG_AMQP091 = "reference_broker.config_amqp091"
CONFIG_NUMBERS = "reference_broker.config_numbers"
CONFIG_QUEUES = "reference_broker.config_queues"
CONFIG_TENANTS = "reference_broker.config_tenants"
CONFIG_FILES = "reference_broker.config_files"
AUTH = "reference_broker.auth"
AUTH_SCRAM = "reference_broker.auth_scram"
QUIRKS = "reference_broker.quirks"
NODE = "reference_broker.node"
SERVER = "reference_broker.server"
API = "reference_broker.api"
HTTP = "reference_broker.http"
GRPC = "reference_broker.grpc_api"
COAP = "reference_broker.coap"
CLIENTS = "reference_broker.clients"
COMMANDS = "reference_broker.commands"
CONFIG_HTTP = "reference_broker.config_http"
CONFIG_GRPC = "reference_broker.config_grpc"
CONFIG_SCHEMAS = "reference_broker.config_schemas"
CONFIG_TRACING = "reference_broker.config_tracing"
CONFIG_WEBHOOKS = "reference_broker.config_webhooks"
SCHEMAS = "reference_broker.schemas"

QUEUE_ROOMS = (
    "jobs",
    "messages",
    "partitions",
    "groups",
    "delivery",
    "dead_letters",
    "limits",
    "delays",
    "queue",
    "registry",
    "transactions",
    "operations",
)

# Prefix of a module -> prefixes it may import. The longest matching prefix counts; a package may import itself.
RULES: dict[str, tuple[str, ...]] = {
    TRACE: (),
    CONFIG: (
        CONFIG_AMQP091,
        CONFIG_GRPC,
        CONFIG_HTTP,
        CONFIG_SCHEMAS,
        CONFIG_WEBHOOKS,
        CONFIG_LISTENERS,
        CONFIG_MQTT,
        CONFIG_NUMBERS,
        CONFIG_QUEUES,
        CONFIG_TENANTS,
        CONFIG_TRACING,
        TRACE,
    ),
    CONFIG_NUMBERS: (),
    CONFIG_QUEUES: (CONFIG_MQTT, CONFIG_NUMBERS, CONFIG_SCHEMAS, CONFIG_TENANTS, CONFIG_WEBHOOKS),
    CONFIG_LISTENERS: (CONFIG_MQTT, CONFIG_NUMBERS),
    CONFIG_TENANTS: (CONFIG_MQTT, CONFIG_NUMBERS),
    CONFIG_AMQP091: (CONFIG_MQTT, CONFIG_NUMBERS),
    CONFIG_HTTP: (CONFIG_MQTT, CONFIG_NUMBERS),
    CONFIG_GRPC: (CONFIG_MQTT, CONFIG_NUMBERS),
    CONFIG_SCHEMAS: (CONFIG_MQTT, CONFIG_NUMBERS),
    CONFIG_TRACING: (CONFIG_MQTT, CONFIG_NUMBERS),
    CONFIG_WEBHOOKS: (CONFIG_MQTT, CONFIG_NUMBERS),
    SCHEMAS: (QUEUES, ROUTING, CONFIG, CONFIG_SCHEMAS, DESCRIBED),
    CONFIG_MQTT: (CONFIG_NUMBERS,),
    AUTH: (CONFIG, AUTH_SCRAM),
    AUTH_SCRAM: (),
    CONFIG_FILES: (CONFIG, TRACE),
    ROUTING: (DESCRIBED,),
    QUEUES: (ROUTING, CONFIG, TRACE),
    # Each room may know those before it.
    **{
        f"{QUEUES}.{room}": (*(f"{QUEUES}.{before}" for before in QUEUE_ROOMS[:place]), ROUTING, CONFIG, TRACE)
        for place, room in enumerate(QUEUE_ROOMS)
    },
    f"{QUEUES}.admin": (QUEUES, ROUTING, CONFIG, TRACE),
    CORE: (QUEUES, ROUTING, CONFIG, TRACE, AUTH),
    STORAGE: (QUEUES, ROUTING, CONFIG, TRACE),
    MQTT: (CORE, QUEUES, ROUTING, CONFIG, TRACE, AUTH),
    # Sessions know no bytes, and packets no state.
    f"{MQTT}.wire": (ROUTING, CONFIG),
    f"{MQTT}.queue_topics": (QUEUES, ROUTING, CONFIG, f"{CORE}.tenant", DESCRIBED),
    f"{MQTT}.batches": (f"{MQTT}.wire", f"{MQTT}.queue_topics", QUEUES, ROUTING),
    f"{MQTT}.sessions": (f"{MQTT}.queue_topics", CORE, QUEUES, ROUTING, CONFIG, TRACE),
    AMQP091: (CORE, QUEUES, ROUTING, CONFIG, TRACE, AUTH),
    f"{AMQP091}.wire": (ROUTING,),
    f"{AMQP091}.topology": (f"{AMQP091}.wire", ROUTING, DESCRIBED),
    QUIRKS: (MQTT, CORE, QUEUES, ROUTING, CONFIG, TRACE),
    NODE: (SCHEMAS, CORE, QUEUES, ROUTING, STORAGE, MQTT, AMQP091, QUIRKS, CONFIG, CONFIG_FILES, TRACE, AUTH),
    # What faces of requests and answers share knows none of them.
    API: (NODE, CORE, QUEUES, ROUTING, MQTT, CONFIG, TRACE, AUTH),
    HTTP: (SCHEMAS, API, NODE, CORE, QUEUES, ROUTING, MQTT, CONFIG, TRACE, AUTH),
    # Of a program of its own: it knows the interface, and nothing of a broker.
    CLIENTS: (f"{GRPC}.schema", f"{GRPC}.errors", DESCRIBED),
    # It asks a broker, whatever that is.
    COMMANDS: (f"{CLIENTS}.http_client", f"{CLIENTS}.shared", f"{TRACE}.terminal", DESCRIBED),
    GRPC: (API, CORE, QUEUES, ROUTING, CONFIG),
    COAP: (API, QUEUES, CONFIG, DESCRIBED),
    SERVER: (HTTP, GRPC, COAP, API, NODE, f"{AMQP091}.wire", CORE, QUEUES, ROUTING, STORAGE, MQTT, CONFIG, TRACE, AUTH),
    "reference_broker.storage_tools": (SCHEMAS, STORAGE, f"{MQTT}.sessions", CORE, QUEUES, ROUTING, CONFIG, TRACE),
    "reference_broker": ("reference_broker",),
    "conformance.wire": (TRACE,),
    "conformance.checkers": (TRACE,),
    "conformance.adapter": ("conformance", "reference_broker"),
    "conformance.mutants": ("conformance", "reference_broker"),
    "conformance": ("conformance", TRACE),
    "faults.scenario": (TRACE, "faults.fault_kinds", "faults.workload_kinds"),
    "faults.workload_kinds": (TRACE,),
    "faults.workload": (TRACE, "conformance.wire", "faults.scenario", "faults.workload_kinds"),
    "faults.fault_kinds": (TRACE,),
    "faults.measure": (TRACE, "faults.scenario", "faults.workload"),
    "faults": (
        "conformance.targets",
        "conformance.wire",
        "conformance.stall",
        "conformance.checkers",
        "conformance.adapter",
        "conformance.mutants",
        TRACE,
    ),
    "loadtests": (
        "conformance.targets",
        "conformance.wire",
        "conformance.checkers",
        "conformance.adapter",
        "conformance.mutants",
        TRACE,
    ),
    "loadtests.bench.simulation": ("loadtests", TRACE, "conformance.checkers", "faults.scenario", "sim"),
    # As any client of gRPC, it is made of the .proto files.
    "loadtests.bench.faces": (
        "loadtests",
        "conformance.targets",
        "conformance.wire",
        f"{GRPC}.schema",
        f"{CLIENTS}.http_client",
    ),
    # The storage bench measures the parts of the broker by themselves.
    "loadtests.bench.engine": ("loadtests", TRACE, CONFIG, QUEUES, ROUTING, STORAGE),
    "loadtests.bench.storage": ("loadtests", TRACE, CONFIG, CORE, QUEUES, ROUTING, STORAGE),
    "sim": (
        NODE,
        f"{SERVER}.clock",
        CORE,
        QUEUES,
        ROUTING,
        STORAGE,
        MQTT,
        AMQP091,
        CONFIG,
        TRACE,
        "conformance.checkers",
        "conformance.wire",
        "conformance.mutants",
        "faults.fault_kinds",
        "faults.scenario",
        "faults.workload",
        "faults.measure",
    ),
    "spark_analysis": (TRACE,),
    "reports": (TRACE,),
    "mutation": ("conformance", TRACE),
    "assay": PACKAGES,
}


def _below(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def _rule_of(module: str) -> str:
    return max((prefix for prefix in RULES if _below(module, prefix)), key=len)


def _modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def _place(name: str) -> str:
    """A module's place from the name that it is imported by; of the package ``assay`` itself both are the same."""
    inner = name.removeprefix("assay.")
    return inner if inner.split(".")[0] in PACKAGES else name


def _imports(module: str, path: Path) -> Iterator[str]:
    """Modules of ours that a module imports, those for type checking included."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, base]) if base else ".".join(parent)
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (_place(name) for name in names if name.split(".")[0] in PACKAGES)


def _violations(module: str, path: Path) -> list[str]:
    rule = _rule_of(module)
    allowed = (rule, *RULES[rule])
    # ``conformance`` may import its own parts, whatever rules those parts have for themselves.
    return [name for name in _imports(module, path) if not any(_below(name, prefix) for prefix in allowed)]


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_keep_to_the_architecture(package: str) -> None:
    found = {
        module: violations
        for module, path in _modules()
        if module.split(".")[0] == package and (violations := _violations(module, path))
    }
    assert not found, "imports against ARCHITECTURE.md: " + "; ".join(
        f"{k} -> {', '.join(v)}" for k, v in found.items()
    )


def test_a_forbidden_import_is_found(tmp_path: Path) -> None:
    path = tmp_path / "engine.py"
    path.write_text(
        "from assay.reference_broker.server import tcp\nimport assay.sim.kernel\nimport json\n", encoding="utf-8"
    )
    assert _violations("reference_broker.core.engine", path) == ["reference_broker.server.tcp", "sim.kernel"]


def test_relative_imports_are_resolved(tmp_path: Path) -> None:
    path = tmp_path / "engine.py"
    path.write_text("from ..server import tcp\n", encoding="utf-8")
    assert _violations("reference_broker.core.engine", path) == ["reference_broker.server.tcp"]


@pytest.mark.parametrize("folder", ["core", "queues", "routing", "mqtt", "amqp091"])
def test_the_core_reads_no_clock_and_draws_no_randomness_of_its_own(folder: str) -> None:
    """Sans-IO: these modules would make a run depend on more than its inputs."""
    forbidden = {"time", "asyncio", "threading", "socket", "secrets", "uuid", "os", "select"}
    for path in sorted((ROOT / "reference_broker" / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [(node.module or "").split(".")[0]]
            assert not forbidden & set(names), f"{path.relative_to(ROOT)} imports {forbidden & set(names)}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
                assert node.attr == "Random", f"{path.relative_to(ROOT)} uses the global random.{node.attr}"
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in ("datetime", "date")
            ):
                assert node.attr not in ("now", "utcnow", "today"), f"{path.relative_to(ROOT)} reads the wall clock"


_CONNECTIONS, _SESSIONS = "reference_broker.mqtt.connections", "reference_broker.mqtt.sessions"
CIRCLES: dict[str, set[str]] = {
    "a connection's handlers change it, as its methods would": {
        f"{_CONNECTIONS}.{name}"
        for name in (
            "asking",
            "connection",
            "enhanced_auth",
            "handlers",
            "handshake",
            "inbound",
            "login",
            "outbound",
            "publish_acks",
            "queue_batches",
        )
    },
    "the broker's parts change it, as its methods would": {
        f"{_SESSIONS}.{name}"
        for name in ("access_review", "mqtt_broker", "queue_admin", "queue_consumers", "sending", "sys_topics")
    },
    "a session tells its journal what changed, and that writes down the session": {
        f"{_SESSIONS}.session",
        f"{_SESSIONS}.session_journal",
    },
    "a case makes its connections, which write in its transcript and book on it": {
        "conformance.case",
        "conformance.connection",
        "conformance.websocket",
    },
    "likewise, of AMQP": {"conformance.amqp091.client", "conformance.amqp091.context"},
}
"""Why some modules name each other, for types alone. What is not in this table is no circle."""


def _types_only(path: Path) -> set[str]:
    """Modules that are imported for type checking alone."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            found |= {
                _place(inner.module or "")
                for statement in node.body
                for inner in ast.walk(statement)
                if isinstance(inner, ast.ImportFrom)
            }
    return found


@cache
def _arrows() -> dict[str, set[str]]:
    """Each module's imports, those for type checking included; packages as a whole stand for their own names."""
    paths = dict(_modules())
    arrows: dict[str, set[str]] = {}
    for module, path in paths.items():
        named = {name if name in paths else name.rpartition(".")[0] for name in _imports(module, path)}
        arrows[module] = {name for name in named if name in paths and name != module}
        if path.name == "__init__.py":
            arrows[module] = {name for name in arrows[module] if not _below(name, module)}
    return arrows


def _circles(arrows: dict[str, set[str]]) -> list[set[str]]:
    """Modules that lead to each other."""
    left = set(arrows)
    while ends := {name for name in left if not arrows[name] & left}:
        left -= ends
    reached: dict[str, set[str]] = {}
    for name in left:
        found, todo = set[str](), [name]
        while todo:
            new = arrows[todo.pop()] & left - found
            found |= new
            todo += new
        reached[name] = found
    return [
        {name, *(other for other in reached[name] if name in reached[other])}
        for name in sorted(left)
        if name in reached[name]
    ]


def test_the_imports_that_run_in_a_circle_are_those_that_are_listed() -> None:
    """Those for type checking included."""
    assert {frozenset(found) for found in _circles(_arrows())} == {frozenset(circle) for circle in CIRCLES.values()}


def test_what_runs_in_a_circle_does_so_for_types_alone() -> None:
    paths = dict(_modules())
    arrows = _arrows()
    for circle in CIRCLES.values():
        TopologicalSorter({name: (arrows[name] & circle) - _types_only(paths[name]) for name in circle}).prepare()


def test_a_circle_is_found() -> None:
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}, {"b", "c"}]


def test_no_folders_import_in_a_circle() -> None:
    """A folder and one within it are one; what a folder's ``__init__`` says is the folder's."""
    folders = {
        module: module if path.name == "__init__.py" else module.rpartition(".")[0] for module, path in _modules()
    }
    arrows: dict[str, set[str]] = {}
    for module, found in _arrows().items():
        here = folders[module]
        there = {folders[name] for name in found}
        arrows.setdefault(here, set()).update(
            name for name in there if not _below(name, here) and not _below(here, name)
        )
    TopologicalSorter(arrows).prepare()
