"""How many calls a lone message takes from its bytes to its segment and its consumer: it may only become less."""

from __future__ import annotations

import pytest
from call_path import CallPath

MESSAGE = {"interval": 105, "fsync": 138}
SETTLEMENT = {"interval": 69, "fsync": 101}
MODULES = 50


@pytest.mark.parametrize("durability", list(MESSAGE))
def test_the_way_of_a_lone_message_grows_no_longer(durability: str) -> None:
    path = CallPath(durability)
    message, settlement = path.message(), path.settlement()
    assert len(message) <= MESSAGE[durability], "python tests/support/call_path.py lists them"
    assert len({call.module for call in message}) <= MODULES
    assert len(settlement) <= SETTLEMENT[durability]
    assert [path.message(), path.settlement()] == [message, settlement], "it is warm: each message goes the same way"
