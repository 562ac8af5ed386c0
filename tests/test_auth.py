"""Who may connect."""

from __future__ import annotations

import hashlib

import pytest

from assay.reference_broker.auth import (
    MAX_RUNNING_CHECKS,
    MAX_WAITING_CHECKS,
    Authenticator,
    CheckQueueFullError,
    hash_password,
    proof_of,
)
from assay.reference_broker.config import AuthConfig, ConfigError, UserConfig

KEY = b"k" * 32


def allows(auth: Authenticator, username: str | None, password: bytes | None, *, loopback: bool) -> bool:
    """The answer, with the check run at once where there is one."""
    known = auth.decide(username, password, loopback=loopback)
    if known is not None:
        return known
    assert username is not None
    assert password is not None
    answers: list[bool] = []
    auth.check(username, password, answers.append)
    (check,) = auth.take_checks()
    check.run()
    auth.finish(check)
    (answer,) = answers
    return answer


def test_a_hash_verifies_its_password_only_and_is_salted() -> None:
    first, second = hash_password(b"secret"), hash_password(b"secret")
    assert first != second
    auth = Authenticator(AuthConfig(users=(UserConfig(username="u", password_hash=first),)), KEY)
    for _ in range(2):  # the second time from the memory of verified passwords
        assert allows(auth, "u", b"secret", loopback=False)
    assert not allows(auth, "u", b"secreT", loopback=True)
    assert not allows(auth, "u", None, loopback=True)
    assert not allows(auth, "v", b"secret", loopback=True)
    assert not allows(auth, None, None, loopback=True), "configured users end anonymous access"


@pytest.mark.parametrize(("loopback", "allowed"), [(True, True), (False, False)])
def test_without_users_only_loopback_is_anonymous(loopback: bool, allowed: bool) -> None:
    auth = Authenticator(AuthConfig(), KEY)
    assert allows(auth, None, None, loopback=loopback) is allowed
    assert allows(auth, "anyone", b"x", loopback=loopback) is allowed


@pytest.mark.parametrize("anonymous", [True, False])
def test_anonymous_access_can_be_decided(anonymous: bool) -> None:
    auth = Authenticator(AuthConfig(anonymous=anonymous), KEY)
    assert allows(auth, None, None, loopback=False) is anonymous


@pytest.mark.parametrize(
    "stored", ["", "plain", "scrypt$x$8$1$00$00", "md5$2$8$1$00$" + "00" * 32, "scrypt$3$99$1$00$" + "0" * 64]
)
def test_malformed_hashes_are_refused_at_start(stored: str) -> None:
    with pytest.raises(ConfigError, match="'u'"):
        Authenticator(AuthConfig(users=(UserConfig(username="u", password_hash=stored),)), KEY)


def one_user() -> Authenticator:
    return Authenticator(AuthConfig(users=(UserConfig(username="u", password_hash=hash_password(b"secret")),)), KEY)


def test_a_password_is_hashed_once() -> None:
    auth = one_user()
    assert allows(auth, "u", b"secret", loopback=False)
    assert auth.decide("u", b"secret", loopback=False) is True, "remembered"
    assert auth.decide("u", b"other", loopback=False) is None
    assert not allows(auth, "u", b"other", loopback=False)
    assert auth.decide("u", b"other", loopback=False) is None, "wrong ones are not remembered"


def test_what_is_remembered_keeps_user_and_password_apart() -> None:
    assert proof_of(b"key", "a", b"\0b:c") != proof_of(b"key", "a\0b", b":c")
    assert proof_of(b"key", "a", b"b") == proof_of(b"key", "a", b"b") != proof_of(b"other", "a", b"b")


def test_unknown_users_cost_a_hash_like_known_ones_and_are_never_let_in() -> None:
    auth = one_user()
    assert auth.decide("stranger", b"secret", loopback=True) is None
    assert not allows(auth, "stranger", b"secret", loopback=True), "though it is somebody's password"


def test_few_checks_run_and_few_wait() -> None:
    auth = one_user()
    answers: list[bool] = []
    for number in range(MAX_WAITING_CHECKS):
        auth.check("u", b"%d" % number, answers.append)
    with pytest.raises(CheckQueueFullError):
        auth.check("u", b"one too many", answers.append)
    taken = auth.take_checks()
    assert len(taken) == MAX_RUNNING_CHECKS
    assert auth.take_checks() == []
    taken[0].run()
    auth.finish(taken[0])
    assert len(auth.take_checks()) == 1
    assert answers == [False]


def test_who_has_gone_waits_no_longer() -> None:
    auth = one_user()
    for number in range(MAX_WAITING_CHECKS):
        auth.check("u", b"%d" % number, lambda _allowed: pytest.fail("nobody is there")).cancel()
    auth.check("u", b"secret", lambda _allowed: None)
    assert len(auth.take_checks()) == 1


@pytest.mark.parametrize(("cost", "block", "parallel"), [(2, 1, 1), (2, 32, 1), (16, 1, 64), (1024, 8, 16)])
def test_every_cost_that_the_configuration_accepts_can_be_checked(cost: int, block: int, parallel: int) -> None:
    """Found by the fuzzer: at the lowest costs scrypt was given too little memory, and raised."""
    salt = b"s" * 16
    digest = hashlib.scrypt(b"secret", salt=salt, n=cost, r=block, p=parallel, dklen=32)
    stored = f"scrypt${cost}${block}${parallel}${salt.hex()}${digest.hex()}"
    users = (UserConfig(username="ann", password_hash=stored),)
    for password, expected in ((b"secret", True), (b"wrong", False)):
        answers: list[bool] = []
        authenticator = Authenticator(AuthConfig(users=users), b"k" * 32)
        check = authenticator.check("ann", password, answers.append)
        check.run()
        authenticator.finish(check)
        assert answers == [expected]


def test_a_check_by_users_that_are_gone_is_answered_with_no() -> None:
    """Who waits for it, and is no connection that is told of the change, would wait for ever."""
    right = AuthConfig(users=(UserConfig(username="ann", password_hash=hash_password(b"secret")),))
    auth, answers = Authenticator(right, KEY), list[bool]()
    check = auth.check("ann", b"secret", answers.append)
    auth.take_checks()
    auth.configure(AuthConfig(users=(UserConfig(username="ann", password_hash=hash_password(b"other")),)))
    check.run()
    auth.finish(check)
    assert answers == [False]
    assert not auth.holds(check)
    assert auth.decide("ann", b"secret", loopback=True) is None, "not remembered"
