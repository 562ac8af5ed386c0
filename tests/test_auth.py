"""Who may connect."""

from __future__ import annotations

import pytest

from reference_broker.auth import Authenticator, hash_password
from reference_broker.config import AuthConfig, ConfigError, UserConfig

KEY = b"k" * 32


def test_a_hash_verifies_its_password_only_and_is_salted() -> None:
    first, second = hash_password(b"secret"), hash_password(b"secret")
    assert first != second
    auth = Authenticator(AuthConfig(users=(UserConfig(username="u", password_hash=first),)), KEY)
    for _ in range(2):  # the second time from the memory of verified passwords
        assert auth.allows("u", b"secret", loopback=False)
    assert not auth.allows("u", b"secreT", loopback=True)
    assert not auth.allows("u", None, loopback=True)
    assert not auth.allows("v", b"secret", loopback=True)
    assert not auth.allows(None, None, loopback=True), "configured users end anonymous access"


@pytest.mark.parametrize(("loopback", "allowed"), [(True, True), (False, False)])
def test_without_users_only_loopback_is_anonymous(loopback: bool, allowed: bool) -> None:
    auth = Authenticator(AuthConfig(), KEY)
    assert auth.allows(None, None, loopback=loopback) is allowed
    assert auth.allows("anyone", b"x", loopback=loopback) is allowed


@pytest.mark.parametrize("anonymous", [True, False])
def test_anonymous_access_can_be_decided(anonymous: bool) -> None:
    auth = Authenticator(AuthConfig(anonymous=anonymous), KEY)
    assert auth.allows(None, None, loopback=False) is anonymous


@pytest.mark.parametrize(
    "stored", ["", "plain", "scrypt$x$8$1$00$00", "md5$2$8$1$00$" + "00" * 32, "scrypt$3$99$1$00$" + "0" * 64]
)
def test_malformed_hashes_are_refused_at_start(stored: str) -> None:
    with pytest.raises(ConfigError, match="'u'"):
        Authenticator(AuthConfig(users=(UserConfig(username="u", password_hash=stored),)), KEY)
