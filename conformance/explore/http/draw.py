"""Lives over HTTP as chance draws them: what lives of queues do that can be asked for by HTTP, and polls between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import msgspec

from assay.conformance.explore.queues import draw
from assay.conformance.explore.queues import life as plan
from assay.conformance.targets import CapabilityValue

_LEFT_OUT = (
    plan.Withhold,
    plan.Begin,
    plan.End,
    plan.Delete,
    plan.Claim,
    plan.Commit,
    plan.Numbered,
    plan.Stray,
)
"""What acknowledgements of MQTT are for, and what HTTP has in GoQueue's form or not at all."""


class _Told:
    """Steps as they are told over HTTP."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._polls = chance.choice((0.3, 0.6, 0.9))
        """How often a consumer comes back between two steps."""
        self._most = chance.choice(((1,), (1, 2, 3), (100,), (1, 5, 100)))
        self._waits = chance.choice((False, True))
        self._releases = chance.choice((False, True))

    def poll(self, consumer: int | None = None) -> plan.Poll:
        pick = self._chance.choice
        return plan.Poll(
            consumer=pick((0, 0, 1, 2)) if consumer is None else consumer,
            most=pick(self._most),
            waits=self._waits and pick((True, False)),
        )

    def step(self, step: Any) -> plan.Step | None:
        match step:
            case plan.Publish():
                return self._published(step)
            case plan.Burst():
                together = step.together or self._chance.choice((True, False))
                return plan.Burst(publishes=tuple(map(self._published, step.publishes)), together=together)
            case plan.Join():
                return self.poll(step.consumer)
            case plan.Settle():
                is_given_back = step.verb == "nack" and self._releases and self._chance.choice((True, False))
                return msgspec.structs.replace(
                    step,
                    verb="release" if is_given_back else step.verb,
                    delay_s=0 if is_given_back else step.delay_s,
                    extend_s=0,
                    form=plan.Form.RECEIPTS,
                    producer=-1,
                    shown_by=-1,
                )
            case plan.Restart():
                amid = None if step.amid is None else self.step(step.amid)
                return plan.Restart(amid=amid if isinstance(amid, plan.Publish | plan.Settle | plan.Cancel) else None)
        told: plan.Step | None = None if isinstance(step, _LEFT_OUT) else step
        return told

    @staticmethod
    def _published(publish: plan.Publish) -> plan.Publish:
        return msgspec.structs.replace(publish, qos=1, expiry_s=0, transaction=False)

    def steps(self, given: tuple[plan.Step, ...]) -> Iterator[plan.Step]:
        for each in given:
            if (told := self.step(each)) is not None:
                yield told
            if self._chance.random() < self._polls:
                yield self.poll()


def drawn(seed: int, number: int, capabilities: Mapping[str, CapabilityValue]) -> plan.QueueLife:
    """A life that a broker with these capabilities can be asked to live."""
    chance = Random(f"http/{seed}/{number}")
    life = draw.drawn(chance.randrange(1 << 30), number, capabilities)
    return msgspec.structs.replace(
        life,
        queues=tuple(msgspec.structs.replace(each, receipts=False) for each in life.queues),
        consumers=tuple(msgspec.structs.replace(each, receive_maximum=0) for each in life.consumers),
        tenant=False,
        steps=tuple(_Told(chance).steps(life.steps)),
    )
