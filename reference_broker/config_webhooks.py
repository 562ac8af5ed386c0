"""The configuration of webhooks, callouts and hooks: who is told of what happens in the broker, and who is asked."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

from assay.reference_broker.config_mqtt import Section
from assay.reference_broker.config_numbers import Range


class EventKind(StrEnum):
    """What happens, by the names that webhooks tell."""

    CONNECTED = "client.connected"
    DISCONNECTED = "client.disconnected"
    TAKEN_OVER = "client.session_takeover"
    SUBSCRIBED = "subscription.created"
    UNSUBSCRIBED = "subscription.removed"
    QUEUE_CREATED = "queue.created"
    QUEUE_DELETED = "queue.deleted"
    QUEUE_FULL = "queue.full"
    DEAD_LETTERED = "message.dead_lettered"
    GROUP_EMPTY = "group.empty"
    GROUP_LAGS = "group.lag"
    OVER_QUOTA = "tenant.over_quota"


class WebhookConfig(Section, frozen=True, kw_only=True):
    """Where events are posted to."""

    url: str
    """An ``https://`` or ``http://`` URL."""
    events: tuple[EventKind, ...] = ()
    """Empty = all."""
    subjects: tuple[str, ...] = ()
    """Filters of MQTT for the client id, queue or tenant that an event is of; empty = all."""
    secret: str = ""
    """Signs each body: ``X-Assay-Signature: sha256=<HMAC in hex>``. Empty = nothing is signed."""
    attempts: Annotated[int, Range(1, 20)] = 4
    timeout_s: Annotated[float, Range(0.1, 60)] = 5.0


class WebhooksConfig(Section, frozen=True, kw_only=True):
    """Who is told of events, and what that may take."""

    endpoints: tuple[WebhookConfig, ...] = ()
    allow_private: bool = False
    """Let endpoints be at private, local and otherwise special addresses."""
    max_waiting: Annotated[int, Range(1, 1_000_000)] = 10_000
    """Events of an endpoint that wait; over it one is dropped and counted."""
    drop_oldest: bool = False
    """The oldest of them, else the newest."""
    breaker_failures: int = 5
    """So many failures in a row, and an endpoint is left alone for ``breaker_pause_s``, then asked once; 0 = never."""
    breaker_pause_s: Annotated[float, Range(0.1, 86_400)] = 60.0
    quiet_s: Annotated[float, Range(0.1, 86_400)] = 60.0
    """What goes on all the time (a full queue, an empty group, lag, quotas) is told of again no earlier than so."""
    group_lag: int = 0
    """A group that is further behind its queue than so many messages is told of; 0 = none is."""


class AskedConfig(Section, frozen=True, kw_only=True):
    """Whom the broker asks by a POST, whose client waits for the answer."""

    url: str
    token: str = ""
    """Sent as ``Authorization: Bearer``."""
    timeout_s: Annotated[float, Range(0.1, 30)] = 2.0
    attempts: Annotated[int, Range(1, 10)] = 2
    allow_private: bool = False
    """Let it be at a private, local or otherwise special address."""
    breaker_failures: int = 5
    """So many failures in a row, and nobody is asked for ``breaker_pause_s``; 0 = never."""
    breaker_pause_s: Annotated[float, Range(0.1, 3_600)] = 10.0


class CalloutConfig(AskedConfig, frozen=True, kw_only=True):
    """Who knows users that are not among ``auth.users``: who they are, and what they may."""

    cache_s: Annotated[float, Range(0, 86_400)] = 300.0
    """A password that was right is not asked about again for so long."""


class HookKind(StrEnum):
    """What hooks decide about, by the names that they are asked with."""

    PUBLISH = "auth_on_publish"
    SUBSCRIBE = "auth_on_subscribe"


class HookFailure(StrEnum):
    """What holds where nobody can be asked, or the answer is none."""

    DENY = "deny"
    ALLOW = "allow"


class HooksConfig(AskedConfig, frozen=True, kw_only=True):
    """Who decides about each publish and subscription, while its client waits."""

    timeout_s: Annotated[float, Range(0.1, 30)] = 0.5
    attempts: Annotated[int, Range(1, 10)] = 1
    kinds: tuple[HookKind, ...] = ()
    """Empty = all."""
    topics: tuple[str, ...] = ()
    """Filters of MQTT for the topics that are asked about; empty = all."""
    fail: HookFailure = HookFailure.DENY


def is_webhook(url: str) -> bool:
    """Whether a URL is one that something can be posted to."""
    if len(url) > 2_048 or not url.isascii() or any(ord(character) <= 32 or ord(character) == 127 for character in url):
        return False
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    plain = parts.username is None and parts.password is None and not parts.fragment and port != 0
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain


def webhook_problem(where: str, url: str) -> list[str]:
    """What is wrong with a URL that has this key."""
    if is_webhook(url):
        return []
    return [f"{where} must be an http:// or https:// URL with a host and without a user or fragment, not {url[:80]!r}"]


def webhooks_problems(config: WebhooksConfig) -> list[str]:
    """What is wrong, each with its key."""
    problems: list[str] = []
    for index, endpoint in enumerate(config.endpoints):
        problems += webhook_problem(f"webhooks.endpoints[{index}].url", endpoint.url)
    if len(config.endpoints) > 100:
        problems.append("webhooks.endpoints has at most 100 entries")
    return problems


def asked_problems(config: AskedConfig, where: str) -> list[str]:
    """What is wrong, each with its key."""
    problems = webhook_problem(f"{where}.url", config.url)
    if not config.token.isascii() or not config.token.isprintable():
        problems.append(f"{where}.token must be printable ASCII")
    return problems
