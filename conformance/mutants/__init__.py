"""Deliberately broken reference brokers (mutants), and legal variations of it (near misses).

A case that no broken broker fails proves nothing. Each mutant is one small, realistic bug, made by patching the
reference broker's own classes; ``assay conformance self-check`` runs every case against its mutant and demands that it
fails, and against its near miss and demands that it passes::

    @mutant("puback-for-qos-2", "QoS 2 is acknowledged like QoS 1")
    def puback_for_qos_2(patch: Patch) -> None:
        patch.wrap(Session, "publish_received", lambda original: lambda self, packet: ...)

    with applied("puback-for-qos-2"):
        ...                                   # in this process, undone at the end
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import ModuleType
from typing import Any
from unittest import mock

import msgspec

_BROKER = "assay.reference_broker"


class UnknownMutantError(LookupError):
    """No mutant or variation has this name."""


class Patch:
    """Replaces attributes of classes and modules until its stack is closed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def replace(self, owner: type | ModuleType, name: str, value: object) -> None:
        """Put ``value`` in the place of the existing attribute ``name``. Raises :class:`AttributeError` without one."""
        self._stack.enter_context(mock.patch.object(owner, name, value))

    def wrap(
        self, owner: type | ModuleType, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        """Replace a function by what ``make(original)`` returns."""
        self.replace(owner, name, make(getattr(owner, name)))

    def rewrite(self, owner: type | ModuleType, name: str, old: str, new: str) -> None:
        """Put ``new`` in the place of a text that a function's source has once, wherever the broker knows the function
        by name. Raises :class:`ValueError`."""
        function = getattr(owner, name)
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(old) != 1:
            message = f"{name} has {old!r} {source.count(old)} times in place of once"
            raise ValueError(message)
        made: dict[str, Any] = {}
        text = f"from __future__ import annotations\n{source.replace(old, new)}"
        exec(compile(text, __file__, "exec"), function.__globals__, made)  # noqa: S102
        self.replace(owner, name, made[name])
        if function.__module__ == owner.__name__:
            self._replace_imported(function, made[name])

    def _replace_imported(self, function: object, made: object) -> None:
        """In modules that import it, and in tables."""
        for module in list(sys.modules.values()):
            if not module.__name__.startswith(_BROKER):
                continue
            for name, value in list(vars(module).items()):
                if value is function:
                    self.replace(module, name, made)
                elif isinstance(value, dict) and not name.startswith("__"):
                    for key in [key for key, each in value.items() if each is function]:
                        self.item(value, key, made)

    def item(self, table: dict[Any, Any], key: object, value: object) -> None:
        """Replace one entry of a table, such as a dispatch or transition table."""
        self._stack.enter_context(mock.patch.dict(table, {key: value}))


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A change to the reference broker."""

    name: str
    what: str
    """What is broken, or for a variation which freedom is used, in one line."""
    apply: Callable[[Patch], None]
    legal: bool = False
    """A near miss: the standard allows it, so no case may fail because of it."""
    freedom: str = ""
    """The clause that leaves it to any server at any time: the self-check runs every case on it. Empty: it is for the
    cases that name it."""
    silences: tuple[str, ...] = ()
    """Cases that may find nothing to judge on such a broker, and say so (``unsupported``)."""
    minutes: bool = False
    """The suites take minutes on it: it is run only when asked for by its name."""


_mutants: dict[str, Mutant] = {}


def _register(
    name: str, what: str, *, legal: bool, freedom: str = "", silences: tuple[str, ...] = (), minutes: bool = False
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def register(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
        known = _mutants.get(name)
        if known is not None and known.apply.__module__ != function.__module__:
            message = f"mutant {name} is defined twice, in {known.apply.__module__} and {function.__module__}"
            raise ValueError(message)
        _mutants[name] = Mutant(
            name=name,
            what=what,
            apply=function,
            legal=legal,
            freedom=freedom,
            silences=silences,
            minutes=minutes,
        )
        return function

    return register


def mutant(name: str, what: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register a bug."""
    return _register(name, what, legal=False)


def variation(
    name: str, what: str, *, freedom: str = "", silences: tuple[str, ...] = (), minutes: bool = False
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register a near miss: unusual, yet allowed; ``freedom``, ``silences``, ``minutes`` as in :class:`Mutant`."""
    return _register(name, what, legal=True, freedom=freedom, silences=silences, minutes=minutes)


@cache
def _import_modules() -> None:
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)


def all_mutants() -> dict[str, Mutant]:
    """Every mutant and variation by name; imports the modules of this package."""
    _import_modules()
    return dict(sorted(_mutants.items()))


def find(name: str) -> Mutant:
    """The mutant or variation of this name; of several with ``+`` between them, all of them at once.

    Raises :class:`UnknownMutantError`, listing the names.
    """
    mutants = all_mutants()
    names = name.split("+")
    for each in names:
        if each not in mutants:
            message = f"unknown mutant {each!r}; known: {', '.join(mutants)}"
            raise UnknownMutantError(message)
    if len(names) == 1:
        return mutants[name]
    parts = [mutants[each] for each in names]

    def apply(patch: Patch) -> None:
        for part in parts:
            part.apply(patch)

    return Mutant(
        name=name,
        what=f"{len(parts)} of them at once",
        apply=apply,
        legal=all(part.legal for part in parts),
        freedom="; ".join(part.freedom for part in parts),
        silences=tuple(case for part in parts for case in part.silences),
    )


@contextmanager
def applied(*names: str) -> Iterator[None]:
    """Apply mutants within a ``with`` block, in this process, and undo them after it."""
    with ExitStack() as stack:
        for name in names:
            find(name).apply(Patch(stack))
        yield
