"""Target files: which broker is judged, what it claims, how to start it, and where it is known to fail.

``load_target("mosquitto")`` reads a file shipped in this folder, ``load_target("my/broker.toml")`` a user's own;
unknown keys are refused by path. :func:`running` starts the broker (or takes the one that already runs) and yields it
once a handshake has succeeded::

    with running(load_target("reference")) as broker:
        print(broker.endpoint.port, broker.pid)
"""

from assay.conformance.targets.access import Access, choose_target
from assay.conformance.targets.amqp import amqp_endpoint
from assay.conformance.targets.errors import ProbeError, StrangeAnswerError
from assay.conformance.targets.faces import face_endpoint
from assay.conformance.targets.model import (
    CAPABILITIES,
    DEFAULT_CAPABILITIES,
    DENIED_BY_CONNACK,
    PRIVATE,
    SECRETS,
    TARGET_SCHEMA,
    CapabilityValue,
    Endpoint,
    ExpectedFailure,
    ExpectedStep,
    StartHook,
    Target,
    TargetError,
    Tls,
    hosted_target,
    load_target,
    parse_target,
    shipped_targets,
)
from assay.conformance.targets.probe import greet, handshake, probe
from assay.conformance.targets.process import (
    Damage,
    RunningTarget,
    TargetStartError,
    free_port,
    installed_version,
    packages_folder,
    running,
    search_path,
    unharmed,
)

__all__ = [
    "CAPABILITIES",
    "DEFAULT_CAPABILITIES",
    "DENIED_BY_CONNACK",
    "PRIVATE",
    "SECRETS",
    "TARGET_SCHEMA",
    "Access",
    "CapabilityValue",
    "Damage",
    "Endpoint",
    "ExpectedFailure",
    "ExpectedStep",
    "ProbeError",
    "RunningTarget",
    "StartHook",
    "StrangeAnswerError",
    "Target",
    "TargetError",
    "TargetStartError",
    "Tls",
    "amqp_endpoint",
    "choose_target",
    "face_endpoint",
    "free_port",
    "greet",
    "handshake",
    "hosted_target",
    "installed_version",
    "load_target",
    "packages_folder",
    "parse_target",
    "probe",
    "running",
    "search_path",
    "shipped_targets",
    "unharmed",
]
