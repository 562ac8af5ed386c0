"""What a broker can be accused of over HTTP beside what its queues do, with the statements behind it."""

from __future__ import annotations

from assay.conformance.explore.rules import StatedRule


class HttpRule(StatedRule):
    """A kind of finding: its name in files, and the statements; an accusation may name fewer."""

    FORM = ("answer-is-no-http", "H-LIMIT-4")
    UNANSWERED = ("request-not-answered", "H-LIMIT-4")
    RESULTS = ("publish-results", "H-PUB-1", "H-PUB-2", "H-PUB-3")
    PLACE = ("another-place-than-was-told", "H-PUB-1")
    MOST = ("more-than-was-asked-for", "H-CONS-5")
    CONSUME = ("consumer-refused", "H-CONS-1")
    LEAVE = ("leaving-refused", "H-CONS-6")
    TELLS = ("message-without-its-members", "H-CONS-1")
