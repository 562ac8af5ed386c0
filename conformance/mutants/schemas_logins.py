"""Bugs of the comparison of schemas, of logins, rights and deletions over AMQP, and of members' generations."""

from __future__ import annotations

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.amqp091 import register_rewrites
from assay.reference_broker.amqp091 import asking, login, rights
from assay.reference_broker.amqp091.publishing import Publishing
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
        "amqp-anybody-acts-for-others": (
            "by PLAIN a user may say to act for another",
            login,
            "read_plain",
            'if acted_for not in ("", username):',
            "if False:",
        ),
        "amqp-anything-ends-scram": (
            "who is proven by SCRAM may say what it likes to the server's proof",
            login.Login,
            "answer",
            "if response:",
            "if False:",
        ),
        "amqp-scram-needs-a-first-response": (
            "SCRAM begins with the first response, or not at all",
            login.Login,
            "begin",
            'return self.answer(response) if response else b""',
            "return self.answer(response)",
        ),
        "amqp-exchanges-are-everybodys": (
            "access rules do not hold for exchanges",
            rights,
            "check_exchange",
            "if grants is None:",
            "if True:",
        ),
        "amqp-reads-are-writes": (
            "who may write to a queue may read it, and nobody else",
            rights,
            "check_queue",
            "grants.may_subscribe(topic) if read else grants.may_publish(topic)",
            "grants.may_publish(topic)",
        ),
        "amqp-further-keys-are-unchecked": (
            "access rules do not hold for further routing keys",
            Publishing,
            "check_rights",
            "in routing_keys_of(routing_key, headers, _MAX_KEYS) if headers else (routing_key,):",
            "in (routing_key,):",
        ),
        "amqp-hooks-asked-about-first-keys": (
            "hooks are not asked about further routing keys",
            asking,
            "on_publish",
            "routing_keys_of(head.way.routing_key, headers, _MAX_KEYS) if headers else (head.way.routing_key,)",
            "(head.way.routing_key,)",
        ),
        "amqp-last-answer-of-hooks-counts": (
            "of a message with several routing keys the last answer of hooks counts",
            asking,
            "on_publish",
            "if verdict.error is not None or not topics:",
            "if not topics:",
        ),
        "amqp-reads-pass-by-hooks": (
            "hooks are not asked about gets and consumers",
            asking,
            "on_read",
            "if queue != REPLY_TO:",
            "if False:",
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
        "schemas-references-alike-by-name": (
            "two schemas that refer to the same name count as the same, whatever stands there",
            compatibility,
            "are_same",
            "return node.pointer == new.pointer and node.document.fingerprint == new.document.fingerprint",
            "return True",
        ),
        "schemas-ends-of-ranges-are-alike": (
            "what begins where another ends is said to have nothing in common with it",
            compatibility.Comparison,
            "is_empty",
            "return least.value > most.value or is_point",
            "return least.value >= most.value",
        ),
    }
)


@mutant("schemas-named-by-longer-prefixes", "what names a schema before a document is taken for a byte longer")
def longer_prefixes(patch: Patch) -> None:
    patch.replace(checks, "PREFIX_BYTES", 6)


@mutant("schemas-as-many-elements-are-too-few", "a schema that asks for as many elements as another is not said to fit")
def as_many_are_too_few(patch: Patch) -> None:
    _rewrite_check(patch, "check_contains", "own_least >= least", "own_least > least")


@mutant("schemas-several-branches-fit-one-of", "where oneOf stands, values may fit several branches")
def several_branches(patch: Patch) -> None:
    _rewrite_check(patch, "check_one_of", "if all(its.excludes(old, branch) for branch in others):", "if True:")


def _rewrite_check(patch: Patch, name: str, old: str, new: str) -> None:
    """Of a keyword: the table has it, too."""
    before = getattr(compatibility, name)
    patch.rewrite(compatibility, name, old, new)
    after = getattr(compatibility, name)
    rules = tuple(rule._replace(check=after) if rule.check is before else rule for rule in compatibility.RULES)
    patch.replace(compatibility, "RULES", rules)
