"""Cases that share a broker and its restarts.

Killing and starting a broker for each case would take minutes. Cases that say so (``Case.together``) run on one broker
at the same time; :meth:`RestartGate.pass_through` lets each of them wait until all that still run have asked for a
restart, and then kills the broker once for all. What one of them fails is judged again by itself, on a broker of its
own: nobody is accused for what was done beside it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable

from assay.conformance.case import Case
from assay.conformance.targets import Damage, Endpoint, unharmed

MOST_TOGETHER = 64
"""Cases on one broker: a phase takes as long as all that is done in it."""


def cohorts(cases: Iterable[Case]) -> list[list[Case]]:
    """Cases that run together: those that may, by what their broker is like; every other case is alone."""
    found: dict[str, list[list[Case]]] = {}
    for case in cases:
        like = json.dumps([case.judged_on, case.settings, case.is_about_a_face]) if case.together else case.id
        groups = found.setdefault(like, [[]])
        if len(groups[-1]) >= MOST_TOGETHER:
            groups.append([])
        groups[-1].append(case)
    return [group for groups in found.values() for group in groups]


class RestartGate:
    """Kills the broker as soon as every member waits for it; a member that is done leaves."""

    def __init__(self, members: int, restart: Callable[[float, Damage], Awaitable[Endpoint]]) -> None:
        self._members, self._restart = members, restart
        self._waiting: list[asyncio.Future[Endpoint]] = []
        self._ahead_s = 0.0
        self._damages: list[Damage] = []
        self._task: asyncio.Task[None] | None = None

    async def pass_through(self, clock_ahead_s: float, damage: Damage = unharmed) -> Endpoint:
        """Wait for the restart; the clock begins that far ahead, or as far as another member has moved it.

        What each member does to its own data is done while the broker is dead.
        Raises :class:`TargetStartError` when the broker does not start again.
        """
        self._ahead_s = max(self._ahead_s, clock_ahead_s)
        self._damages.append(damage)
        done: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._look()
        return await done

    def leave(self) -> None:
        """A member is done."""
        self._members -= 1
        self._look()

    def _look(self) -> None:
        waiting = [each for each in self._waiting if not each.cancelled()]
        if waiting and len(waiting) >= self._members and self._task is None:
            self._waiting = []
            self._task = asyncio.get_running_loop().create_task(self._open(waiting))

    async def _open(self, waiting: list[asyncio.Future[Endpoint]]) -> None:
        damages, self._damages = self._damages, []

        def all_of_it() -> None:
            for damage in damages:
                damage()

        try:
            endpoint = await self._restart(self._ahead_s, all_of_it)
        except Exception as error:
            for each in waiting:
                if not each.done():
                    each.set_exception(error)
        else:
            for each in waiting:
                if not each.done():
                    each.set_result(endpoint)
        finally:
            self._task = None
