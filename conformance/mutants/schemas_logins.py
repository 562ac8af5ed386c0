"""Bugs of the comparison of schemas, of logins and deletions over AMQP, and of generations that members name."""

from __future__ import annotations

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.amqp091 import register_rewrites
from assay.reference_broker.amqp091 import login
from assay.reference_broker.amqp091.topology.records import Journal
from assay.reference_broker.api.consumers import Member
from assay.reference_broker.schemas import checks, compatibility

register_rewrites(
    {
        "amqp-tables-of-credentials-refused": (
            "AMQPLAIN is offered and lets nobody in",
            login,
            "read_amqplain",
            "return Credentials(named[0].decode(), named[1])",
            "return Credentials(repr(named[0]), named[1])",
        ),
        "amqp-bindings-of-deleted-queues-come-back": (
            "what goes with a queue is not deleted in the log",
            Journal,
            "delete",
            "self._held[key] = self._holder",
            "pass",
        ),
        "grpc-members-of-any-generation": (
            "a member may name any generation",
            Member,
            "heartbeat",
            "if generation is not None and",
            "if False and",
        ),
        "schemas-references-not-followed": (
            "what a reference leads to does not count as said",
            compatibility.Comparison,
            "flatten",
            "waiting.append(target)",
            "pass",
        ),
    }
)


@mutant("schemas-named-by-longer-prefixes", "what names a schema before a document is taken for a byte longer")
def longer_prefixes(patch: Patch) -> None:
    patch.replace(checks, "PREFIX_BYTES", 6)


@mutant("schemas-as-many-elements-are-too-few", "a schema that asks for as many elements as another is not said to fit")
def as_many_are_too_few(patch: Patch) -> None:
    before = compatibility.check_contains
    patch.rewrite(compatibility, "check_contains", "own_least >= least", "own_least > least")
    after = compatibility.check_contains
    rules = tuple(rule._replace(check=after) if rule.check is before else rule for rule in compatibility.RULES)
    patch.replace(compatibility, "RULES", rules)
