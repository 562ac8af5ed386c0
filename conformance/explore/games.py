"""What lives are about: MQTT as a whole, queues, these over HTTP, AMQP 0.9.1. A campaign plays each in the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from assay.conformance.explore import draw, life, shrink
from assay.conformance.explore.amqp import draw as amqp_draw
from assay.conformance.explore.amqp import life as amqp_life
from assay.conformance.explore.amqp.player import AmqpPlayer
from assay.conformance.explore.held import HELD, HELD_OF_QUEUES
from assay.conformance.explore.http import draw as http_draw
from assay.conformance.explore.http.life import HttpReplay
from assay.conformance.explore.http.player import HttpPlayer
from assay.conformance.explore.player import Player
from assay.conformance.explore.queues import draw as queue_draw
from assay.conformance.explore.queues import life as queue_life
from assay.conformance.explore.queues.player import QueuePlayer
from assay.conformance.targets import CapabilityValue

AnyLife = life.Life | queue_life.QueueLife | amqp_life.AmqpLife
AnyReplay = life.Replay | queue_life.QueueReplay | HttpReplay | amqp_life.AmqpReplay


class Game(NamedTuple):
    """A kind of life; found by its name, so that it can be told to other processes."""

    drawn: Callable[[int, int, Mapping[str, CapabilityValue]], AnyLife]
    player: Callable[..., Any]
    replay: Callable[..., AnyReplay]
    shrink: Callable[..., Any]
    settings: Mapping[str, Any]
    """Of a broker of ours, beside those of all."""
    options: Mapping[str, Any]
    """Of a player on a broker of ours, which lives as long as a few lives do."""
    lives_a_broker: int
    """So many are played on one broker of ours: each start reads what all lives before it have written."""
    faces: bool = False
    """A broker of ours speaks HTTP."""


_TENANT = "acme"
GAMES: dict[str, Game] = {
    # Without rules of access, which all other brokers of ours have that are judged: without, fewer questions are asked.
    "mqtt": Game(draw.drawn, Player, life.Replay, shrink.shrink, {"acl": None}, {"held": HELD}, 25),
    "queues": Game(
        queue_draw.drawn,
        QueuePlayer,
        queue_life.QueueReplay,
        shrink.shrink_steps,
        {
            "queues": {
                "segment_bytes": 16_384,
                "segment_age_s": 5,
                "tenants": [{"name": _TENANT, "clients": [f"{_TENANT}-*"]}],
            }
        },
        {"tidies": False, "tenant": _TENANT, "held": HELD},
        4,  # every queue that they leave is opened at each start
    ),
    "http": Game(
        http_draw.drawn,
        HttpPlayer,
        HttpReplay,
        shrink.shrink_steps,
        {
            "listeners": [{"port": 0}, {"port": 0, "protocols": ["http"]}],
            "queues": {"segment_bytes": 16_384, "segment_age_s": 5},
        },
        {"tidies": False, "held": HELD},
        4,
        faces=True,
    ),
    "amqp091": Game(
        amqp_draw.drawn,
        AmqpPlayer,
        amqp_life.AmqpReplay,
        shrink.shrink_steps,
        {
            "listeners": [{"port": 0, "protocols": ["mqtt", "amqp091"]}],
            "queues": {"segment_bytes": 16_384},
            "testing": {"movable_clock": True},
        },
        {"clock": True, "held": HELD + HELD_OF_QUEUES},
        25,
    ),
}


def story(replay: AnyReplay) -> list[str]:
    """Its life in lines for people."""
    match replay:
        case queue_life.QueueReplay() | HttpReplay():
            return queue_life.story(replay.life)
        case amqp_life.AmqpReplay():
            return amqp_life.story(replay.life)
    return life.story(replay.life)
