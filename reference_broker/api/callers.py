"""Who asks: the same users as over every other protocol, by password, token or certificate, and what they may.

Scopes say what a caller may do at all; access rules and tenants hold beside them, as :mod:`core.queue_rights` has it.
Without access rules, nobody beyond loopback administers but by a token with the scope ``admin``; and whoever has no
user name beyond loopback may only read.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.api.turns import Turns
from assay.reference_broker.auth import CheckQueueFullError
from assay.reference_broker.config import Scope
from assay.reference_broker.core.access import Grants
from assay.reference_broker.core.broker import owner_of
from assay.reference_broker.core.tenant import Tenant
from assay.reference_broker.core.tenants import Tenants
from assay.reference_broker.queues import QueueAddress, QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import engine_name, topic_of
from assay.reference_broker.trace.context import TRACEPARENT, TRACESTATE, read_context

_Error = TypeVar("_Error", bound=Exception)
ALL_SCOPES: Final = frozenset(Scope)
ADMIN_TOPIC: Final = "$admin/queue/"
_CHECK_TIMEOUT_S = 30.0
"""For a password to be checked: longer only if users changed meanwhile, and then nobody answers."""
_MAX_CREDENTIALS = 4_096


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """The connection that a request came over."""

    peer: str
    """Address and port, for the log."""
    address: str
    """Without the port."""
    loopback: bool
    """The listener is bound to loopback only."""
    certificate_name: str | None = None
    """Who it is by its verified certificate, where the listener goes by that."""


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says of who sends it."""

    username: str | None = None
    password: bytes | None = None
    token: str | None = None


class Caller:
    """Who asks. A :class:`Client` of the broker, bound to no connection."""

    connection = None

    def __init__(
        self,
        *,
        username: str | None,
        client_id: str,
        scopes: frozenset[Scope],
        grants: Grants | None,
        tenant: Tenant | None,
        may_administer: bool,
        tenants: Tenants | None = None,
    ) -> None:
        self.username = username
        self.client_id = client_id
        self.scopes = scopes
        self.grants = grants
        """None = there are no access rules."""
        self.tenant = tenant
        self.may_administer = may_administer
        self._tenants = tenants
        self.trace: tuple[tuple[str, str], ...] = ()
        """The W3C Trace Context of its request; see :meth:`traced`."""

    def note_trace(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Headers or metadata of its request; a context that cannot be read is none."""
        named = tuple([pair for pair in pairs if pair[0] in (TRACEPARENT, TRACESTATE)])
        if named and read_context(named) is not None:
            self.trace = named

    def traced(self, pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """User properties of a message that it publishes, with the context of the request where they have none."""
        if not self.trace or any(name == TRACEPARENT for name, _ in pairs):
            return pairs
        return (*[pair for pair in pairs if pair[0] != TRACESTATE], *self.trace)

    def require(self, scope: Scope) -> None:
        """Raises :class:`QueueError` (NOT_ALLOWED)."""
        if scope not in self.scopes:
            raise _refused(f"this needs the scope {scope.value}, which {self.named} does not have")

    @property
    def named(self) -> str:
        return "who has no user name" if self.username is None else repr(self.username[:80])

    def may_read(self, topic: str) -> bool:
        """A topic filter, as the client writes it."""
        return self.grants is None or self.grants.may_subscribe(topic)

    def may_write(self, topic: str) -> bool:
        return self.grants is None or self.grants.may_publish(topic)

    def check_topic(self, topic: str, scope: Scope) -> None:
        """Ask the access rules for a topic of the client's. Raises :class:`QueueError` (NOT_ALLOWED)."""
        self.require(scope)
        if not (self.may_write(topic) if scope is Scope.WRITE else self.may_read(topic)):
            raise _refused(f"{self.named} may not {scope.value} {topic[:80]!r}")

    def queue(self, name: str, scope: Scope, routing_key: str = "") -> str:
        """The engine's name of a queue that the caller reads from or writes to. Raises :class:`QueueError`.

        ``routing_key``: a filter where it reads.
        """
        name = engine_name(name)
        self.check_topic(topic_of(name, routing_key), scope)
        if self.tenant is not None:
            return self.tenant.name_in(name)
        self.check_reach(name)
        return name

    def reads(self, queue: str) -> bool:
        """Whether it may look at a queue, by the engine's name."""
        if self.tenant is not None and not self.tenant.owns(queue):
            return False
        try:
            return self.queue(self.told(queue), Scope.READ) == queue
        except QueueError:
            return False

    @property
    def owner(self) -> str:
        """What its producers and members belong to."""
        return owner_of(self)

    @property
    def holder(self) -> str:
        """Who has only some of all transactions that may be open."""
        return self.owner if self.username else f"{self.owner}\0{self.client_id}"

    def check_reach(self, name: str) -> None:
        """Whether a name, or an id that begins with one, is its own to use. Raises QueueError (NOT_ALLOWED)."""
        if self.tenant is None and self._tenants is not None:
            self._tenants.check_reach(self, QueueAddress(queue=name))

    def told(self, name: str) -> str:
        """A queue's name, or an id that begins with one, as the caller knows it."""
        return name if self.tenant is None else self.tenant.name_out(name)

    def named_in(self, name: str) -> str:
        """The opposite, of an id."""
        return name if self.tenant is None else self.tenant.name_in(name)

    def refusal(self, error: _Error) -> _Error | QueueError:
        """What it is refused for, in names as it knows them."""
        return error if self.tenant is None or not isinstance(error, QueueError) else self.tenant.error_out(error)

    def administer(self, operation: str) -> None:
        """Ask the access rules for an operation of the administration: ``create``, ``<queue>/purge``.

        Raises :class:`QueueError` (NOT_ALLOWED).
        """
        self.require(Scope.ADMIN)
        topic = f"{ADMIN_TOPIC}{operation}"
        allowed = self.may_administer if self.grants is None else self.grants.may_administer(topic, read=False)
        if self.tenant is not None or not allowed:
            raise _refused(f"{self.named} may not administer")

    def administered(self, name: str, operation: str) -> str:
        """The engine's name of a queue that is administered. Raises :class:`QueueError`."""
        name = engine_name(name)
        self.administer(f"{name}/{operation}")
        return name


class Callers:
    """Finds out who asks."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    async def find(self, credentials: Credentials, arrival: Arrival, client_id: str | None) -> Caller:
        """``client_id``: what the client calls itself. Raises :class:`RequestError` (UNAUTHENTICATED, BUSY)."""
        username, scopes = await self._verify(credentials, arrival)
        driver, _ = self._turns.turn()
        state = driver.node.state
        called = client_id or f"api:{username or arrival.address}"
        grants = None if state.access is None else state.access.grants(username, called)
        tenant = None if state.tenants is None else state.tenants.of_client(username, called)
        if grants is not None:
            administers = grants.may_administer(f"{ADMIN_TOPIC}list", read=False)
        else:
            administers = arrival.loopback or credentials.token is not None
        return Caller(
            username=username,
            client_id=called,
            scopes=scopes,
            grants=grants,
            tenant=tenant,
            may_administer=tenant is None and administers and Scope.ADMIN in scopes,
            tenants=state.tenants,
        )

    async def _verify(self, credentials: Credentials, arrival: Arrival) -> tuple[str | None, frozenset[Scope]]:
        driver, now = self._turns.turn()
        authenticator = driver.node.authenticator
        if credentials.token is not None:
            token = authenticator.token(credentials.token, now)
            if token is None:
                raise _unauthenticated("that token is not known here, or has expired")
            return token.user, frozenset(token.scopes)
        if arrival.certificate_name is not None:
            return arrival.certificate_name, ALL_SCOPES
        username, password = credentials.username, credentials.password
        allowed = authenticator.decide(username, password, loopback=arrival.loopback)
        if allowed is None and username is not None and password is not None:
            allowed = await self._check(username, password)
        if not allowed:
            raise _unauthenticated(
                "user name or password is wrong" if username is not None else "this needs a user, or a token"
            )
        if not authenticator.has_users:
            # Whatever it calls itself, nobody has verified that.
            username = None
        if username is None and not arrival.loopback:
            return None, frozenset({Scope.READ})
        return username, ALL_SCOPES

    async def _check(self, username: str, password: bytes) -> bool:
        driver, _ = self._turns.turn()
        answer: asyncio.Future[bool | None] = driver.loop.create_future()

        def checked(allowed: bool | None) -> None:
            if not answer.done():
                answer.set_result(allowed)

        try:
            check = driver.node.authenticator.check(username, password, checked, protocol="api")
        except CheckQueueFullError:
            raise RequestError(Code.BUSY, "so many passwords are being checked that this one must wait") from None
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                allowed = await answer
            if allowed is None or not driver.node.authenticator.holds(check):
                raise RequestError(Code.BUSY, "the password could not be checked, or the users changed: try again")
            return allowed
        except TimeoutError:
            raise RequestError(Code.BUSY, "the password was not checked in time: try again") from None
        finally:
            check.cancel()


def read_authorization(value: str) -> Credentials:
    """The Authorization header (RFC 7617, RFC 6750). Raises :class:`RequestError` (UNAUTHENTICATED)."""
    scheme, _, given = value.partition(" ")
    given = given.strip()
    if len(given) > _MAX_CREDENTIALS:
        raise _unauthenticated("the credentials are too long")
    if scheme.lower() == "bearer" and given:
        return Credentials(token=given)
    if scheme.lower() == "basic":
        try:
            username, colon, password = base64.b64decode(given, validate=True).partition(b":")
            if colon:
                return Credentials(username=username.decode(), password=password)
        except (binascii.Error, ValueError):
            pass
        raise _unauthenticated("the credentials are not <user>:<password> in base64")
    raise _unauthenticated("authenticate by Basic or Bearer")


def _unauthenticated(text: str) -> RequestError:
    return RequestError(Code.UNAUTHENTICATED, text)


def _refused(text: str) -> QueueError:
    return QueueError(QueueErrorCode.NOT_ALLOWED, text)
