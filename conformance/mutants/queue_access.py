"""Bugs of access rules: what overlaps is taken for apart, and rules for others count."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.config import AclConfig
from assay.reference_broker.core import access
from assay.reference_broker.core.access import AccessControl, Grants
from assay.reference_broker.core.queue_rights import READING_VERBS, WRITING_VERBS
from assay.reference_broker.mqtt.connections.inbound import Inbound

Levels = tuple[str, ...]


@mutant("access-denials-must-cover", "a denial that reaches a part of a filter only does not count")
def denials_must_cover(patch: Patch) -> None:
    patch.replace(access, "overlap", lambda first, second: access.covers(first, second))


@mutant("access-rules-for-anybody", "a rule with a client is for all clients")
def rules_for_anybody(patch: Patch) -> None:
    def make(original: Callable[[AccessControl, AclConfig], None]) -> Callable[[AccessControl, AclConfig], None]:
        def build(self: AccessControl, config: AclConfig) -> None:
            rules = [msgspec.structs.replace(rule, client=None) for rule in config.rules]
            original(self, msgspec.structs.replace(config, rules=rules))

        return build

    patch.wrap(AccessControl, "__init__", make)


@mutant("access-names-go-in-as-they-are", "a wildcard in a client's id is a level like others in its rules")
def names_go_in(patch: Patch) -> None:
    def make(original: Callable[..., Grants]) -> Callable[..., Grants]:
        def grants(self: AccessControl, username: str | None, client_id: str) -> Grants:
            return original(self, username, client_id.translate(str.maketrans("+#/", "...")))

        return grants

    patch.wrap(AccessControl, "grants", make)


def _unasked(original: Callable[..., None]) -> Callable[..., None]:
    """The rules are not asked meanwhile."""

    def act(self: Inbound, *arguments: object) -> None:
        connection = self._connection
        grants, connection.grants = connection.grants, None
        try:
            original(self, *arguments)
        finally:
            connection.grants = grants

    return act


@mutant("access-qos-0-is-not-asked-about", "what comes at QoS 0 is published, whoever may do that")
def qos_0_unasked(patch: Patch) -> None:
    patch.wrap(Inbound, "publish_qos0", _unasked)


@mutant("access-runs-are-not-asked-about", "where packets are forwarded as they came, no right is asked for")
def runs_unasked(patch: Patch) -> None:
    patch.wrap(Inbound, "renew", _unasked)


@mutant("access-settling-is-writing", "a verb of a queue needs writing, whatever it is")
def settling_is_writing(patch: Patch) -> None:
    patch.replace(access, "READING_VERBS", ())
    patch.replace(access, "WRITING_VERBS", (*READING_VERBS, *WRITING_VERBS))
