"""Token buckets and the bounded table of arrival rates, in time moved by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.core.rates import ArrivalRates, TokenBucket, arrival_key


def test_a_bucket_fills_with_time_up_to_its_capacity_and_pays_its_debt() -> None:
    bucket = TokenBucket(10.0, 5.0, 100.0)
    assert bucket.available(100.0) == 5.0
    bucket.take(8)
    assert bucket.available(100.0) == -3.0
    assert bucket.wait_s(0) == pytest.approx(0.3)
    assert bucket.wait_s(1) == pytest.approx(0.4)
    assert bucket.available(100.4) == pytest.approx(1.0)
    assert bucket.wait_s(1) == pytest.approx(0.0)
    assert bucket.available(1_000.0) == 5.0
    assert bucket.wait_s(99) == 0.0, "more than the capacity never comes: it waits for a full bucket"


def test_time_that_steps_back_gives_nothing() -> None:
    bucket = TokenBucket(10.0, 5.0, 100.0)
    bucket.take(5)
    assert bucket.available(99.0) == 0.0
    assert bucket.available(100.0) == 0.0


@given(
    st.sampled_from([0.5, 1.0, 7.0, 100.0]),
    st.integers(1, 20),
    st.lists(st.floats(0, 3, allow_subnormal=False), max_size=60),
)
def test_arrivals_are_those_of_a_token_bucket(rate_per_s: float, burst: int, pauses_s: list[float]) -> None:
    """The one number kept for a key decides as the bucket does, which counts every token."""
    now = 0.0
    rates = ArrivalRates(rate_per_s, burst, 10)
    bucket = TokenBucket(rate_per_s, burst, now)
    for pause_s in pauses_s:
        now += pause_s
        available = bucket.available(now)
        if abs(available - 1) < 1e-5:
            return  # too close for floats to agree
        assert rates.allows("a", now) is (available >= 1)
        if available >= 1:
            bucket.take(1)


def test_keys_do_not_share() -> None:
    rates = ArrivalRates(1.0, 2, 10)
    assert [rates.allows("a", 0.0) for _ in range(3)] == [True, True, False]
    assert rates.allows("b", 0.0)
    assert rates.allows("a", 1.0), "exactly in time"
    assert not rates.allows("a", 1.0)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 2, allow_subnormal=False)), max_size=200))
def test_the_table_never_outgrows_its_bound(arrivals: list[tuple[int, float]]) -> None:
    rates = ArrivalRates(1.0, 2, 8)
    now = 0.0
    for key, pause_s in arrivals:
        now += pause_s
        rates.allows(str(key), now)
        assert len(rates) <= 8


def test_a_flood_of_addresses_does_not_let_one_that_keeps_trying_be_forgotten() -> None:
    rates = ArrivalRates(0.01, 1, 100)
    assert rates.allows("greedy", 0.0)
    for n in range(1_000):
        assert rates.allows(f"new {n}", 0.0)
        if n % 50 == 0:
            assert not rates.allows("greedy", 0.0)
    assert len(rates) == 100


def test_what_has_recovered_is_forgotten_first_and_then_what_arrived_longest_ago() -> None:
    rates = ArrivalRates(1.0, 1, 2)
    assert rates.allows("old", 0.0)
    assert rates.allows("busy", 1.5)
    assert rates.allows("new", 1.6), "'old' had recovered and made room"
    assert not rates.allows("busy", 1.7), "it is still remembered"
    assert rates.allows("newer", 1.8)
    assert len(rates) == 2
    assert not rates.allows("busy", 1.9), "'new' had not arrived since: it made room"


@pytest.mark.parametrize(
    ("address", "other", "same"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("/run/broker.sock", "/run/broker.sock", True),
    ],
)
def test_addresses_count_by_what_one_client_can_have(address: str, other: str, same: bool) -> None:
    assert (arrival_key("l", address) == arrival_key("l", other)) is same
    assert arrival_key("l", address) != arrival_key("m", address), "each listener counts for itself"
