"""What each workload needs of a broker, and which of it a broker lacks: that is ``unsupported``, not a failure.

A lack is declared by the target file, stated in CONNACK, or shown by the answer to a handshake; it is never inferred
from a load that went wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.conformance.targets import CAPABILITIES, CapabilityValue, Endpoint, ProbeError, Target, handshake, probe
from assay.loadtests.packets import property_section, publish_frame, user_property
from assay.loadtests.profile import Load, Profile, QueueLoad
from assay.reference_broker.trace.results import Check, Verdict

_RUN_ID_TEXT = "0" * 16


class UnsupportedError(Exception):
    """The broker lacks a capability that a workload needs; the text names it."""


def publish_size(load: Load) -> int:
    """Bytes of the longest PUBLISH of a workload."""
    name = f"{load.name}-p{load.publishers - 1}"
    if isinstance(load, QueueLoad):
        topic, properties = f"$queue/load-{_RUN_ID_TEXT}-{load.name}", user_property(b"partition-key", name.encode())
    else:
        topic, properties = f"load/{_RUN_ID_TEXT}/{name}", b""
    section = property_section(properties, load.version)
    return len(publish_frame(load.qos, topic.encode(), 1, section, bytes(load.payload_bytes)))


def needs(load: Load) -> list[str]:
    """Names of the capabilities (``CAPABILITIES`` of ``conformance.targets``) without which a workload cannot run."""
    found = ["mqtt5" if load.version == 5 else "mqtt311"]
    found += [f"qos{qos}" for qos in (1, 2) if load.qos >= qos]
    return found + (["queues"] if isinstance(load, QueueLoad) else [])


def lacks(load: Load, target: Target, endpoint: Endpoint, found: dict[str, CapabilityValue]) -> list[str]:
    """What keeps the workload from running, each as ``capability (what it is): how that is known``."""
    problems = [_describe(name, target, endpoint) for name in needs(load) if not found.get(name)]
    limit, size = int(found.get("maximum_packet_size", 0)), publish_size(load)
    if limit and size > limit:
        problems.append(f"maximum_packet_size: CONNACK states {limit} bytes, the workload sends packets of {size}")
    return problems


def _describe(name: str, target: Target, endpoint: Endpoint) -> str:
    what = CAPABILITIES[name].partition(" (")[0]
    if name in target.capabilities and not target.capabilities[name]:
        how = "its target file declares that it does not"
    elif name in ("mqtt311", "mqtt5"):
        try:
            handshake(endpoint, 5 if name == "mqtt5" else 4)
            how = "it answers the handshake now and then only"
        except ProbeError as error:
            how = str(error)
    elif name == "queues":
        how = "its target file does not declare it (for a broker given by URL: --queues)"
    else:
        how = "its CONNACK states a lower Maximum QoS"
    return f"{name} ({what}): {how}"


def supported(profile: Profile, target: Target, endpoint: Endpoint) -> tuple[Profile, dict[str, list[str]]]:
    """The workloads that the broker can run, and what it lacks for each of the others.

    Raises :class:`~assay.conformance.targets.ProbeError` when no handshake succeeds.
    """
    found = probe(target, endpoint)
    problems = {load.name: lacks(load, target, endpoint, found) for load in profile.workloads}
    left_out = {name: said for name, said in problems.items() if said}
    return profile.only([name for name in problems if name not in left_out]), left_out


_USER_NEEDS = {"MqttUser": ("mqtt5", "qos1", "qos2"), "QueueUser": ("mqtt5", "qos1", "queues")}
"""Of the users of ``locustfile.py``."""


def users_lack(users: Sequence[str], target: Target, endpoint: Endpoint) -> list[str]:
    """What keeps Locust users from running. Raises :class:`~assay.conformance.targets.ProbeError`."""
    found = probe(target, endpoint)
    needed = dict.fromkeys(name for user in users for name in _USER_NEEDS.get(user, ()))
    return [_describe(name, target, endpoint) for name in needed if not found.get(name)]


def left_out_checks(left_out: dict[str, list[str]]) -> list[Check]:
    """One check for each workload that could not run, so that no report is silent about it."""
    return [
        Check(
            name=f"{name}: the whole workload",
            value=None,
            unit="",
            verdict=Verdict.UNKNOWN,
            source="what a broker lacks is not held against it",
            subject=f"workload {name}",
            reason=f"unsupported: {'; '.join(said)}",
        )
        for name, said in left_out.items()
    ]
