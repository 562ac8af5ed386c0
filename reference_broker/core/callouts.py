"""Asks somebody else who a client is, and what it may do. Sans-IO: a callout is a POST of an outbox, which
``server.webhooks`` makes and guards; the client waits for it as for the check of a password, and nobody else does.

Whoever cannot be asked lets nobody in. What was allowed is remembered for a while, so that a storm of clients that
come back is no storm of callouts.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from assay.reference_broker.auth import CheckQueueFullError, LoginCheck, OnChecked, proof_of
from assay.reference_broker.config import (
    AclRuleConfig,
    AskedConfig,
    CalloutConfig,
    Permission,
    UserConfig,
    rule_problems,
)
from assay.reference_broker.queues.jobs.outbox import Breaker, OnAnswer, Outbox
from assay.reference_broker.trace.described import described

MAX_CALLOUTS: Final = 256
"""Clients that wait for a callout; more are told to come back later."""
MAX_RUNNING_CALLOUTS: Final = 32
MAX_ANSWER_BYTES: Final = 65_536
"""Of an answer; a longer one is none."""
MAX_REMEMBERED: Final = 10_000
"""Users, and their passwords, that were allowed; the oldest are asked about again."""
MAX_RULES: Final = 100
"""Of a user."""
_FIRST_BACKOFF_S: Final = 0.1


class AllowedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """As a rule of ``acl.rules``, for the user alone."""

    topic: str
    access: Permission


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What is answered, with FluxMQ's names."""

    authenticated: bool
    id: str = ""
    """What it calls the user; hooks are told."""
    reason: str = ""
    rules: tuple[AllowedTopic, ...] = ()
    """Beside those of ``acl.rules``; they hold where there is a section ``acl``."""


def read_answer(body: bytes) -> Answer | None:
    """None where it is not one."""
    try:
        answer = msgspec.json.decode(body, type=described(Answer))
    except (ValueError, RecursionError):
        return None
    if len(answer.rules) > MAX_RULES or rule_problems(_rules(answer, None), "rules"):
        return None
    return answer


def _rules(answer: Answer, username: str | None) -> tuple[AclRuleConfig, ...]:
    return tuple(AclRuleConfig(topic=each.topic, access=each.access, user=username) for each in answer.rules)


class Asker:
    """Asks one place, within bounds."""

    def __init__(self, what: str, config: AskedConfig, now: Callable[[], float], most_answer_bytes: int) -> None:
        """``what`` is asked, for the log."""
        self._config = config
        self._now = now
        self._most_answer_bytes = most_answer_bytes
        self._breaker = Breaker(config.breaker_failures, config.breaker_pause_s)
        self.outbox = Outbox(
            what,
            max_waiting=MAX_CALLOUTS,
            max_running=MAX_RUNNING_CALLOUTS,
            first_backoff_s=_FIRST_BACKOFF_S,
            patient=False,
            breaker=self._breaker,
        )

    @property
    def is_closed(self) -> bool:
        """Nobody is asked now: too many wait for it, or nobody has answered for a while."""
        return self.outbox.waiting >= MAX_CALLOUTS or self._breaker.room(0, 1, self._now()) <= 0

    def ask(self, body: bytes, on_answer: OnAnswer) -> None:
        """Post JSON; not where :attr:`is_closed`."""
        config = self._config
        self.outbox.post(
            config.url,
            body,
            attempts=config.attempts,
            timeout_s=config.timeout_s,
            allow_private=config.allow_private,
            headers=(("Authorization", f"Bearer {config.token}"),) if config.token else (),
            most_answer_bytes=self._most_answer_bytes,
            on_answer=on_answer,
        )


class ExternalUsers:
    """Users whom somebody else knows. Implements :class:`assay.reference_broker.auth.ExternalUsers`."""

    def __init__(self, config: CalloutConfig, cache_key: bytes, now: Callable[[], float]) -> None:
        """``cache_key`` is a secret of this process."""
        self._config = config
        self._cache_key = cache_key
        self._now = now
        self._asker = Asker("callout", config, now, MAX_ANSWER_BYTES)
        self.outbox = self._asker.outbox
        self._allowed: OrderedDict[bytes, float] = OrderedDict()
        """Until when, by keyed hash."""
        self._user_rules: OrderedDict[str, tuple[AclRuleConfig, ...]] = OrderedDict()
        self._ids: OrderedDict[str, str] = OrderedDict()

    def _proof(self, username: str, password: bytes) -> bytes:
        return proof_of(self._cache_key, username, password)

    def knows(self, username: str, password: bytes) -> bool:
        """Whether it was allowed lately."""
        return self._now() < self._allowed.get(self._proof(username, password), 0.0)

    def rules(self, username: str) -> tuple[AclRuleConfig, ...]:
        """What the last answer allowed a user."""
        return self._user_rules.get(username, ())

    def id_of(self, username: str) -> str:
        """What the last answer called a user."""
        return self._ids.get(username, "")

    def check(
        self,
        username: str,
        password: bytes,
        users: tuple[UserConfig, ...] | None,
        on_done: OnChecked,
        client_id: str,
        protocol: str,
    ) -> LoginCheck:
        """See the protocol. Raises :class:`CheckQueueFullError`, also while nobody is asked since nobody answers."""
        if self._asker.is_closed:
            raise CheckQueueFullError
        check = LoginCheck(users, on_done)
        asked = {"client_id": client_id, "username": username, "protocol": protocol}
        try:
            asked["password"] = password.decode()
        except UnicodeDecodeError:
            asked["password_base64"] = base64.b64encode(password).decode()
        proof = self._proof(username, password)
        self._asker.ask(msgspec.json.encode(asked), lambda body: self._answered(check, username, proof, body))
        return check

    def _answered(self, check: LoginCheck, username: str, proof: bytes, body: bytes | None) -> None:
        answer = None if body is None else read_answer(body)
        if answer is not None and answer.authenticated:
            self._remember(username, proof, answer)
        if check.on_done is not None:
            check.on_done(None if answer is None else answer.authenticated)

    def _remember(self, username: str, proof: bytes, answer: Answer) -> None:
        if self._config.cache_s:
            self._allowed[proof] = self._now() + self._config.cache_s
            self._allowed.move_to_end(proof)
        self._user_rules[username] = _rules(answer, username)
        self._user_rules.move_to_end(username)
        if answer.id:
            self._ids[username] = answer.id
            self._ids.move_to_end(username)
        for remembered in (self._allowed, self._user_rules, self._ids):
            if len(remembered) > MAX_REMEMBERED:
                remembered.popitem(last=False)
