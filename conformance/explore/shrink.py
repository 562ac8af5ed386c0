"""Makes a life that fails smaller: fewer steps first, then plainer ones. Pure, but for the question whether one fails.

Shrinking what chance drew would take hundreds of lives; with the structs at hand a few dozen do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from assay.conformance.explore.life import Burst, Client, Life, Subscribe, Unsubscribe, clients_of

PLAIN = Client()


def _without_steps(life: Any) -> Iterator[Any]:
    """Without halves, quarters ... and single steps, from the end."""
    size = len(life.steps)
    width = size
    while width:
        width //= 2
        for start in range(size - width, -1, -width) if width else ():
            yield msgspec.structs.replace(life, steps=life.steps[:start] + life.steps[start + width :])


def _plainer(record: Any) -> Iterator[Any]:
    """With one field at its default."""
    for field in msgspec.structs.fields(type(record)):
        if not field.required and getattr(record, field.name) != field.default:
            yield msgspec.structs.replace(record, **{field.name: field.default})


def _shorter(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if len(items) > 1:
        yield from (items[:index] + items[index + 1 :] for index in range(len(items)))


def _plainer_parts(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield from _shorter(items)
    for index, item in enumerate(items):
        for plain in _plainer(item) if isinstance(item, msgspec.Struct) else ():
            yield (*items[:index], plain, *items[index + 1 :])


def _steps_like(step: Any) -> Iterator[tuple[Any, ...]]:
    """What may stand in the place of a step."""
    if isinstance(step, Burst):
        yield step.publishes
        yield from ((msgspec.structs.replace(step, publishes=some),) for some in _plainer_parts(step.publishes))
    elif isinstance(step, Subscribe | Unsubscribe):
        yield from ((msgspec.structs.replace(step, filters=some),) for some in _plainer_parts(step.filters))
    yield from ((plain,) for plain in _plainer(step))


def candidates(life: Life) -> Iterator[Life]:
    """Lives that are a little smaller, the much smaller ones first."""
    yield from _without_steps(life)
    used = set[int]().union(*(clients_of(step) for step in life.steps))
    for index, client in enumerate(life.clients):
        for plain in (PLAIN, *_plainer(client)) if index in used and client != PLAIN else ():
            yield msgspec.structs.replace(life, clients=(*life.clients[:index], plain, *life.clients[index + 1 :]))
    for index, step in enumerate(life.steps):
        for steps in _steps_like(step):
            yield msgspec.structs.replace(life, steps=(*life.steps[:index], *steps, *life.steps[index + 1 :]))


def shrink(life: Life, fails: Callable[[Life], bool], may_go_on: Callable[[], bool]) -> Life:
    """The smallest life found that fails, until no smaller one does or ``may_go_on`` says no."""
    life = _smallest(life, candidates, fails, may_go_on)
    used = set[int]().union(*(clients_of(step) for step in life.steps))
    clients = tuple(client if index in used else PLAIN for index, client in enumerate(life.clients))
    return msgspec.structs.replace(life, clients=clients)


def shrink_steps(life: Any, fails: Callable[[Any], bool], may_go_on: Callable[[], bool]) -> Any:
    """Likewise, of any struct that has ``steps``, and tuples of structs beside them."""
    return _smallest(life, _plainer_lives, fails, may_go_on)


def _plainer_lives(life: Any) -> Iterator[Any]:
    yield from _without_steps(life)
    yield from _plainer(life)
    for field in msgspec.structs.fields(type(life)):
        items = getattr(life, field.name)
        if not isinstance(items, tuple):
            continue
        for fewer in _plainer_parts(items) if field.name == "steps" else _plainer_each(items):
            yield msgspec.structs.replace(life, **{field.name: fewer})
    for index, step in enumerate(life.steps):
        for steps in _in_place_of(step):
            yield msgspec.structs.replace(life, steps=(*life.steps[:index], *steps, *life.steps[index + 1 :]))


def _plainer_each(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Without its last, or one of them plainer: steps name the others by their places."""
    if len(items) > 1:
        yield items[:-1]
    for index, item in enumerate(items):
        yield from ((*items[:index], plain, *items[index + 1 :]) for plain in _plainer(item))


def _in_place_of(step: Any) -> Iterator[tuple[Any, ...]]:
    if (publishes := getattr(step, "publishes", None)) is not None:
        yield publishes
        yield from ((msgspec.structs.replace(step, publishes=some),) for some in _plainer_parts(publishes))
    if getattr(step, "amid", None) is not None:
        yield (step.amid, msgspec.structs.replace(step, amid=None))
    if isinstance(getattr(step, "which", None), tuple):
        yield from ((msgspec.structs.replace(step, which=some),) for some in _shorter(step.which))


def _smallest(
    life: Any,
    smaller_than: Callable[[Any], Iterator[Any]],
    fails: Callable[[Any], bool],
    may_go_on: Callable[[], bool],
) -> Any:
    tried: set[bytes] = set()
    improved = True
    while improved:
        improved = False
        for smaller in smaller_than(life):
            key = msgspec.json.encode(smaller)
            if key in tried:
                continue
            if not may_go_on():
                return life
            tried.add(key)
            if fails(smaller):
                life, improved = smaller, True
                break
    return life
