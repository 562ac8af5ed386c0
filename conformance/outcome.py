"""How a case ends other than by returning: the exceptions that the runner turns into verdicts."""

from __future__ import annotations


class CaseFailureError(Exception):
    """A MUST was seen to be violated; the text says what was expected and what was seen."""


class UnsupportedError(Exception):
    """The target lacks what the case needs; the text names the capability and where that was learnt."""


class TooSlowError(Exception):
    """What the case did took longer than an interval that it had set: what it sees says nothing of the broker."""


class TargetUnreachableError(Exception):
    """No connection to the target could be opened, so nothing can be said of it."""


class ClientFaultError(Exception):
    """The case itself, as a client, was about to break a rule: no server could be blamed for what follows."""
