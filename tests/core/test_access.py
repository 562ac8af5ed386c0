"""Access rules: what a filter reaches, and what names may not do to a rule."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from assay.reference_broker.config import AclConfig, AclRuleConfig, ConfigError, DefaultAccess, Permission, parse_config
from assay.reference_broker.core import access
from assay.reference_broker.core.access import AccessControl, Grants, covers, overlap
from assay.reference_broker.routing.topics import matches

ALPHABET = ("a", "b", "$x", "")
TOPICS = ["/".join(levels) for size in (1, 2, 3, 4) for levels in product(ALPHABET, repeat=size)]
"""Every topic of up to four levels, even the empty one; filters of up to three cannot tell more."""


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.sampled_from(("a", "b", "$x", "", "+")), min_size=1, max_size=3))
    if draw(st.booleans()):
        levels[-1] = "#"
    topic_filter = "/".join(levels)
    assume(topic_filter)
    return topic_filter


def _split(topic_filter: str) -> tuple[str, ...]:
    return tuple(topic_filter.split("/"))


@given(filters(), filters())
@example("+/#", "#")
@example("#", "+/#")
@example("a/#", "a")
@example("/#", "+")
@example("a/+/#", "a/#")
@example("+/a", "$x/a")
@example("$x/#", "#")
def test_covering_and_overlapping_are_what_they_are_on_topics(rule: str, topic_filter: str) -> None:
    reached = {topic for topic in TOPICS if matches(topic_filter, topic)}
    allowed = {topic for topic in TOPICS if matches(rule, topic)}
    # The alphabet is finite, so that a literal could by chance be all that "+" reaches; four literals exclude that.
    assert covers(_split(rule), _split(topic_filter)) == (reached <= allowed)
    assert overlap(_split(rule), _split(topic_filter)) == bool(reached & allowed)


def grants(*rules: AclRuleConfig, user: str | None = None, client: str = "c", default: str = "deny") -> Grants:
    config = AclConfig(rules=rules, default=DefaultAccess(default))
    return AccessControl(config).grants(user, client)


def rule(
    topic: str, permission: str = "readwrite", user: str | None = None, client: str | None = None
) -> AclRuleConfig:
    return AclRuleConfig(topic=topic, access=Permission(permission), user=user, client=client)


@given(
    st.lists(st.tuples(filters(), st.sampled_from(list(Permission))), max_size=4),
    st.sampled_from(list(DefaultAccess)),
    filters(),
)
def test_a_granted_filter_reaches_no_topic_that_may_not_be_read(
    rules: list[tuple[str, Permission]], default: DefaultAccess, topic_filter: str
) -> None:
    """Against the meaning of the rules, topic by topic."""
    config = AclConfig(rules=tuple(AclRuleConfig(topic=t, access=p) for t, p in rules), default=default)
    mine = AccessControl(config).grants(None, "c")

    def permitted(topic: str, wanted: Permission) -> bool:
        named = {permission for rule_topic, permission in rules if matches(rule_topic, topic)}
        if Permission.DENY in named:
            return False
        return default is DefaultAccess.ALLOW or bool(named & {wanted, Permission.READWRITE})

    reached = [topic for topic in TOPICS if matches(topic_filter, topic)]
    if mine.may_subscribe(topic_filter):
        assert all(permitted(topic, Permission.READ) for topic in reached)
    elif len(rules) <= 1:
        # With one rule there is no union of rules that could cover what none covers alone.
        assert not all(permitted(topic, Permission.READ) for topic in reached)
    for topic in reached[:50]:
        assert mine.may_publish(topic) == permitted(topic, Permission.WRITE)
        assert mine.may_publish(topic) == permitted(topic, Permission.WRITE), "the remembered answer is the same"


def test_reading_and_writing_are_apart() -> None:
    mine = grants(rule("in/#", "write"), rule("out/#", "read"), rule("both", "readwrite"))
    assert [mine.may_publish(topic) for topic in ("in/x", "out/x", "both", "other")] == [True, False, True, False]
    assert [mine.may_subscribe(topic) for topic in ("in/x", "out/+", "both", "other")] == [False, True, True, False]


def test_a_denial_wins_wherever_it_stands() -> None:
    for rules in ((rule("#"), rule("secret/#", "deny")), (rule("secret/#", "deny"), rule("#"))):
        mine = grants(*rules)
        assert mine.may_publish("open")
        assert not mine.may_publish("secret/x")
        assert not mine.may_publish("secret")
        for reaching in ("#", "+/x", "secret", "+"):
            assert not mine.may_subscribe(reaching)
        assert mine.may_subscribe("open/#")


def test_rules_hold_for_those_they_name() -> None:
    rules = (rule("u", user="ann"), rule("c", client="c1"), rule("uc", user="ann", client="c1"), rule("n", user=""))
    cases = {("ann", "c1"): "u c uc", ("ann", "c2"): "u", ("bob", "c1"): "c", (None, "c1"): "c n", ("", "x"): "n"}
    for (user, client), allowed in cases.items():
        mine = grants(*rules, user=user, client=client)
        assert " ".join(topic for topic in ("u", "c", "uc", "n") if mine.may_publish(topic)) == allowed


def test_placeholders_are_the_clients_own_names() -> None:
    rules = (rule("d/%c/#"), rule("u/%u"), rule("x-%u-%c/%%c"))
    mine = grants(*rules, user="ann", client="c1")
    for topic in ("d/c1/x", "d/c1", "u/ann", "x-ann-c1/%c1"):
        assert mine.may_publish(topic), topic
    for topic in ("d/c2/x", "u/bob", "d/%c/x", "u/%u"):
        assert not mine.may_publish(topic), topic
    assert not mine.may_subscribe("d/+/x")
    assert grants(rule("%c"), client="%u", user="ann").may_publish("%u"), "a name is never looked at for placeholders"


NAMES = st.text(alphabet="ab+#/$%cu", max_size=6)


@given(NAMES, NAMES, st.sampled_from(["d/%c", "d/%c/#", "%c/x", "%u", "d/x%cx/+", "%u/%c", "$queue/%c/#"]), st.data())
@example("+", "u", "d/%c", None)
@example("a/b", "u", "d/%c", None)
@example("#", "u", "d/%c", None)
@example("", "u", "d/%c/#", None)
@example("$SYS", "u", "%c/x", None)
def test_no_name_widens_a_rule(client: str, user: str, topic: str, data: st.DataObject | None) -> None:
    """What a rule allows one client lies within the levels that hold its name; a strange name gets nothing."""
    mine = grants(rule(topic), client=client, user=user)
    for value, placeholder in ((client, "%c"), (user, "%u")):
        strange = not value or not set("+#/").isdisjoint(value)
        if placeholder in topic and strange:
            for probe in (
                "d/a",
                "d/a/b",
                "d",
                "a",
                "a/x",
                "d/xax/a",
                "$SYS/x",
                "$queue/a/b",
                f"d/{value}",
                value or "a",
            ):
                assert not mine.may_publish(probe)
                assert not mine.may_subscribe(probe)
    literal = topic.replace("%c", "!c").replace("%u", "!u").replace("!c", client).replace("!u", user)
    if data is not None:
        probe = data.draw(st.sampled_from(["#", "+", "d/+", "d/#", "+/#", "+/x", "$queue/+/#", "$SYS/x", literal]))
        if mine.may_subscribe(probe) and probe != literal:
            assert covers(_split(literal), _split(probe))


def test_a_name_opens_none_of_the_brokers_own_topics() -> None:
    assert not grants(rule("%c/x"), client="$SYS").may_subscribe("$SYS/x")
    assert not grants(rule("%c/jobs"), client="$queue").may_publish("$queue/jobs")
    assert grants(rule("$queue/%c"), client="jobs").may_publish("$queue/jobs")


@pytest.mark.parametrize("name", ["+", "#", "a/b", "a+", ""])
def test_a_strange_name_does_not_slip_past_a_denial(name: str) -> None:
    mine = grants(rule("#"), rule("private/%c/x", "deny"), client=name)
    assert not mine.may_publish(f"private/{name or 'z'}/x")
    assert not mine.may_subscribe("private/#")
    assert mine.may_publish("public")
    everything = grants(rule("%c/x", "deny"), client=name, default="allow")
    assert not everything.may_publish("public")
    assert not everything.may_publish("$SYS/x")
    assert not everything.may_subscribe("$queue/a")


def test_queues() -> None:
    mine = grants(rule("$queue/orders/#", "read"), rule("$queue/jobs", "write"), rule("$queue/one", "read"))
    assert mine.may_subscribe("$queue/orders")
    assert mine.may_subscribe("$queue/orders/eu/+")
    assert not mine.may_subscribe("$queue/jobs")
    assert mine.may_publish("$queue/jobs")
    assert not mine.may_publish("$queue/jobs/eu")
    assert not mine.may_publish("$queue/orders")
    for verb in ("$ack", "$nack", "$reject"):
        assert mine.may_publish(f"$queue/orders/{verb}"), "who reads a queue may settle"
        assert not mine.may_publish(f"$queue/jobs/{verb}")
    assert mine.may_subscribe("$queue/one"), "the name of a queue stands for all of it"


def test_a_consumer_of_a_whole_queue_reaches_every_routing_key() -> None:
    mine = grants(rule("$queue/#"), rule("$queue/orders/secret", "deny"))
    assert not mine.may_subscribe("$queue/orders")
    assert mine.may_subscribe("$queue/orders/open")
    assert mine.may_subscribe("$queue/other")


@pytest.mark.parametrize("spelling", ["$dlq/orders", "$queue/dlq/orders"])
def test_dead_letters_have_two_spellings_and_one_right(spelling: str) -> None:
    assert not grants(rule("$queue/#")).may_subscribe(spelling), "a rule for queues says nothing about dead letters"
    assert not grants(rule("#")).may_subscribe(spelling)
    for written in ("$dlq/#", "$queue/dlq/#"):
        assert grants(rule(written)).may_subscribe(spelling)
        assert not grants(rule(written, "deny"), default="allow").may_subscribe(spelling)


def test_decisions_are_bounded_and_belong_to_one_set_of_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MAX_CACHED_DECISIONS", 4)
    mine = grants(rule("a/#"))
    for number in range(20):
        assert mine.may_publish(f"a/{number}")
        assert mine.may_subscribe(f"a/{number}")
    assert len(mine._publish) <= 4
    assert len(mine._subscribe) <= 4
    assert not grants(rule("b/#")).may_publish("a/1")


@pytest.mark.parametrize("topic", ["", "a/#/b", "a+", "#a", "$share/g/a", "%c+"])
def test_rules_with_bad_topics_are_refused(topic: str) -> None:
    with pytest.raises(ConfigError, match=r"acl\.rules\[0\]"):
        parse_config({"acl": {"rules": [{"topic": topic, "access": "read"}]}})


def test_an_unknown_permission_is_refused() -> None:
    with pytest.raises(ConfigError, match="access"):
        parse_config({"acl": {"rules": [{"topic": "a", "access": "all"}]}})


@pytest.mark.parametrize("rule", ["$admin/queue/dlq/orders/#", "$admin/queue/$dlq/orders/#"])
@pytest.mark.parametrize("topic", ["$admin/queue/dlq/orders/purge", "$admin/queue/$dlq/orders/purge"])
def test_administration_of_dead_letters_has_two_spellings_and_one_right(rule: str, topic: str) -> None:
    """What a rule denies, or allows, in one of them holds for the other."""
    everything = AclRuleConfig(topic="$admin/#", access=Permission.READWRITE)
    for access_, allowed in ((Permission.DENY, False), (Permission.READWRITE, True)):
        rules = (AclRuleConfig(topic=rule, access=access_), *(() if allowed else (everything,)))
        grants = AccessControl(AclConfig(rules=rules)).grants(None, "c")
        assert grants.may_administer(topic, read=False) is allowed


@pytest.mark.parametrize(
    ("topic", "read", "write"),
    [
        ("$queue/q/$ack", True, False),
        ("$queue/q/$commit", True, False),
        ("$dlq/q/$nack", True, False),
        ("$queue/q/$cancel", False, True),
        ("$queue/q", False, True),
        ("$queue/q/key/$claim", False, False),
        ("shop/$ack", False, False),
        ("$queue/q/$unknown", False, False),
    ],
)
def test_a_verb_needs_the_right_that_its_row_names(topic: str, read: bool, write: bool) -> None:
    for access_, allowed in ((Permission.READ, read), (Permission.WRITE, write)):
        rules = tuple(AclRuleConfig(topic=one, access=access_) for one in ("$queue/q", "$dlq/q"))
        grants = AccessControl(AclConfig(rules=rules)).grants(None, "c")
        assert grants.may_publish(topic) is allowed
