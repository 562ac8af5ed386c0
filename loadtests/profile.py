"""The load profile: a strict YAML file of phases, workloads and latency targets."""

from __future__ import annotations

from collections.abc import Collection
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

import msgspec

from assay.loadtests.payload import HEADER_BYTES
from assay.loadtests.schedule import Arrivals
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.schema import LatencyOperation
from assay.reference_broker.trace.yaml_text import YamlError, read_yaml

PROFILE_SCHEMA: Literal["assay.load/1"] = "assay.load/1"
MAX_CONNECTIONS = 500
MAX_MESSAGES = 2_000_000
MAX_RUN_S = 3_600.0
MAX_PAYLOAD_BYTES = 1_048_576


class ProfileError(ValueError):
    """A profile is wrong or missing; the text names the file and the key, and says what to do."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Phases(_Part, frozen=True, kw_only=True):
    """Lengths in seconds. Only ``steady`` is judged; the others are recorded."""

    warmup_s: float = 1.0
    steady_s: float = 10.0
    cooldown_s: float = 0.5

    @property
    def total_s(self) -> float:
        return self.warmup_s + self.steady_s + self.cooldown_s

    def phase_of(self, at_s: float) -> str:
        """``warmup``, ``steady`` or ``cooldown`` of a moment of the run."""
        if at_s < self.warmup_s:
            return "warmup"
        return "steady" if at_s < self.warmup_s + self.steady_s else "cooldown"


class PubSubLoad(_Part, frozen=True, kw_only=True, tag="pubsub", tag_field="kind"):
    """Publishers with a topic each, and subscribers of every topic."""

    name: str
    arrivals: Arrivals
    """Of all publishers together."""
    qos: int = 0
    version: int = 5
    """4 = MQTT 3.1.1, 5 = MQTT 5.0."""
    publishers: int = 1
    subscribers_per_publisher: int = 1
    payload_bytes: int = 100
    in_flight: int = 1_000
    """Unacknowledged publishes of a publisher at most; the broker's Receive Maximum may lower it."""

    @property
    def connections(self) -> int:
        return self.publishers * (1 + self.subscribers_per_publisher)

    @property
    def copies(self) -> int:
        """Deliveries of each message."""
        return self.subscribers_per_publisher


class QueueLoad(_Part, frozen=True, kw_only=True, tag="queue", tag_field="kind"):
    """Publishers to one durable queue, and consumer groups that settle every delivery with ``$ack``. MQTT 5.0, QoS 1.

    Every publisher uses its own partition key, so its messages stay in order within a group.
    """

    name: str
    arrivals: Arrivals
    """Of all publishers together."""
    publishers: int = 1
    groups: int = 1
    consumers_per_group: int = 1
    payload_bytes: int = 100
    in_flight: int = 1_000

    @property
    def qos(self) -> int:
        return 1

    @property
    def version(self) -> int:
        return 5

    @property
    def connections(self) -> int:
        return self.publishers + self.groups * self.consumers_per_group

    @property
    def copies(self) -> int:
        """Deliveries of each message."""
        return self.groups


Load = PubSubLoad | QueueLoad


class LatencyTarget(_Part, frozen=True, kw_only=True):
    """A bound on the 99th percentile of an operation in every workload, at the rates of this profile."""

    operation: LatencyOperation
    p99_ms: float
    source: str = ""
    workloads: tuple[str, ...] = ()
    """Names of the workloads it holds for; empty = all."""


class Baseline(_Part, frozen=True, kw_only=True):
    """The same load against the null broker, before the run: what the generator itself adds, and its ceiling."""

    steady_s: float = 1.5
    """0 = no baseline; then nothing is known of the generator's headroom."""
    ceiling_messages: int = 10_000
    """Sent at once to find the highest rate of the generator."""


class Profile(_Part, frozen=True, kw_only=True):
    """A whole profile; all workloads run at the same time."""

    schema: Literal["assay.load/1"] = PROFILE_SCHEMA
    name: str
    description: str = ""
    seed: int = 1
    phases: Phases = Phases()
    workloads: tuple[Load, ...]
    targets: tuple[LatencyTarget, ...] = ()
    drain_timeout_s: float = 5.0
    """How long to wait after the last arrival for what is under way; what is missing then is lost."""
    baseline: Baseline = Baseline()

    def only(self, names: Collection[str]) -> Profile:
        """These workloads, and their targets."""
        targets = tuple(
            msgspec.structs.replace(target, workloads=tuple(name for name in target.workloads if name in names))
            for target in self.targets
            if not target.workloads or set(names) & set(target.workloads)
        )
        loads = tuple(load for load in self.workloads if load.name in names)
        return msgspec.structs.replace(self, workloads=loads, targets=targets)

    def faster(self, times: float) -> Profile:
        """Every workload at so many times its rate. Raises :class:`ProfileError` when that is too much."""
        loads = tuple(
            msgspec.structs.replace(
                load,
                arrivals=msgspec.structs.replace(
                    load.arrivals,
                    rate_per_s=load.arrivals.rate_per_s * times,
                    end_rate_per_s=load.arrivals.end_rate_per_s * times,
                ),
            )
            for load in self.workloads
        )
        found = msgspec.structs.replace(self, workloads=loads)
        if problems := _problems(found):
            raise ProfileError(f"{times:g} times the rates of {self.name}: " + "; ".join(problems))
        return found


def _problems(profile: Profile) -> list[str]:
    found = [] if profile.workloads else ["workloads: at least one is needed"]
    names = [load.name for load in profile.workloads]
    if len(set(names)) != len(names) or not all(names):
        found.append(f"workloads: every one needs a name of its own, not {names}")
    for load in profile.workloads:
        at = f"workloads.{load.name}"
        found += [f"{at}.arrivals: {problem}" for problem in load.arrivals.problems()]
        if load.qos not in (0, 1, 2):
            found.append(f"{at}.qos must be 0, 1 or 2, not {load.qos}")
        if load.version not in (4, 5):
            found.append(f"{at}.version must be 4 or 5, not {load.version}")
        if load.publishers < 1 or load.copies < 1 or load.in_flight < 1:
            found.append(f"{at}: publishers, their subscribers or groups, and in_flight must be at least 1")
        if isinstance(load, QueueLoad) and load.consumers_per_group < 1:
            found.append(f"{at}.consumers_per_group must be at least 1")
        if not HEADER_BYTES <= load.payload_bytes <= MAX_PAYLOAD_BYTES:
            found.append(f"{at}.payload_bytes must be {HEADER_BYTES} to {MAX_PAYLOAD_BYTES}, not {load.payload_bytes}")
    phases = profile.phases
    if min(phases.warmup_s, phases.cooldown_s) < 0 or phases.steady_s <= 0 or phases.total_s > MAX_RUN_S:
        found.append(f"phases: steady_s must be above 0, the others at least 0, all together at most {MAX_RUN_S:g} s")
    connections = sum(load.connections for load in profile.workloads)
    if connections > MAX_CONNECTIONS:
        found.append(f"{connections} connections; at most {MAX_CONNECTIONS} can be driven with exact timers")
    if not found:
        messages = sum(load.arrivals.expected_messages(phases.total_s) * load.copies for load in profile.workloads)
        if messages > MAX_MESSAGES:
            found.append(f"about {messages:,.0f} deliveries; at most {MAX_MESSAGES:,} fit one run")
    unknown = {name for target in profile.targets for name in target.workloads} - set(names)
    if unknown:
        found.append(f"targets name unknown workloads: {', '.join(sorted(unknown))}")
    return found


def parse_profile(data: object, *, where: str = "profile") -> Profile:
    """Check plain data. Raises :class:`ProfileError` naming the key."""
    try:
        profile = msgspec.convert(data, described(Profile))
    except msgspec.ValidationError as error:
        message = f"{where}: {error}"
        raise ProfileError(message) from error
    problems = _problems(profile)
    if problems:
        raise ProfileError(f"{where}: " + "; ".join(problems))
    return profile


def shipped_profiles() -> list[str]:
    """Names of the profiles of this package."""
    folder = files("assay.loadtests").joinpath("profiles")
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_profile(name_or_path: str) -> Profile:
    """A shipped profile by name, or a file by path. Raises :class:`ProfileError`."""
    path: Path | Traversable = Path(name_or_path)
    if not name_or_path.endswith((".yaml", ".yml")):
        if name_or_path not in shipped_profiles():
            message = (
                f"unknown profile {name_or_path!r}: use {', '.join(shipped_profiles())}, or the path of a .yaml file"
            )
            raise ProfileError(message)
        path = files("assay.loadtests").joinpath("profiles", f"{name_or_path}.yaml")
    try:
        data = read_yaml(path)
    except OSError as error:
        message = f"cannot read the profile {name_or_path}: {error.strerror}"
        raise ProfileError(message) from error
    except YamlError as error:
        message = f"{name_or_path} is not YAML: {error}"
        raise ProfileError(message) from error
    return parse_profile(data, where=name_or_path)
