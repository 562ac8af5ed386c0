"""One life of a broker whose clients speak AMQP 0.9.1."""

from __future__ import annotations

from assay.reference_broker.amqp091.wire.replies import AmqpError
from assay.sim.fuzz.amqp_grammar import AmqpGrammar
from assay.sim.fuzz.amqp_mutation import mutate_amqp
from assay.sim.fuzz.amqp_world import AmqpWorld
from assay.sim.fuzz.corpus import Feature, Script
from assay.sim.fuzz.life import AnyLife, Talk


class AmqpTalk(AmqpGrammar):
    """As :class:`Talk`."""

    def follow(self, script: Script) -> None:
        """It is said as it is."""


class AmqpLife(AnyLife[AmqpWorld]):
    """Of clients of AMQP 0.9.1."""

    damage = staticmethod(mutate_amqp)
    damage_shares = (0.0, 0.0, 0.0, 0.002, 0.005, 0.01, 0.1)
    """Nearly all that is damaged ends its connection."""

    def _make_world(self) -> AmqpWorld:
        return AmqpWorld(self.setup_name, self.seed)

    def _make_talk(self, world: AmqpWorld) -> AmqpTalk:
        return AmqpTalk(self._rng, with_users=bool(world.setup.config.auth.users))

    def _hear(self, talk: Talk, world: AmqpWorld, number: int) -> Feature:
        slot = world.slots[number]
        seen = {(said.name, int(said["reply-code"]) if said.name.endswith(".close") else 0) for said in slot.inbox}
        assert isinstance(talk, AmqpTalk)
        talk.receive(slot.inbox)
        slot.inbox.clear()
        return tuple(sorted(seen))[:4]

    def _kind_of(self, frame: bytes) -> int:
        """Type, class and method."""
        return int.from_bytes(frame[:1] + frame[7:11]) if frame[0] == 1 else frame[0]

    def _state_of(self, world: AmqpWorld, number: int) -> Feature:
        slot = world.slots.get(number)
        if slot is None:
            return ()
        connection = slot.connection
        error = connection.error
        broken = (error.rule, int(error.code)) if isinstance(error, AmqpError) else ("", 0)
        channels = connection.channels.values()
        return (
            connection.phase.name,
            *broken,
            min(len(channels), 3),
            min(connection.consumer_count, 3),
            min(sum(len(channel.consuming._unsettled) for channel in channels), 3),
            min(connection.transacted_count, 2),
            connection.wants_pause,
        )
