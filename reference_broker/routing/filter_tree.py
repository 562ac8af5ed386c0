"""Which filters of a tree match a topic; what is at the end of a filter is for whoever has the tree."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar


class FilterNode(Protocol):
    """One level of the filters."""

    @property
    def children(self) -> dict[str, Any]:
        """By the next level; ``+`` and ``#`` are levels like others."""


NodeT = TypeVar("NodeT", bound=FilterNode)


_MANY = 8


class FilterTree(Generic[NodeT]):
    """Filters level by level. A base class, and no function, so that looking a topic up costs no call more."""

    _root: NodeT
    walked = 0
    """Nodes that were visited where many were, until somebody charges them to whoever made it necessary."""

    def walk(self, topic: str) -> list[NodeT]:
        """Nodes whose filter matches the topic. Every topic that is not cached comes here."""
        matching: list[NodeT] = []
        nodes: list[NodeT] = [self._root]
        levels = topic.split("/")
        if topic[:1] == "$":
            # Wildcards at the first level do not reach these.
            first = self._root.children.get(levels.pop(0))
            nodes = [] if first is None else [first]
        for level in levels:
            below: list[NodeT] = []
            for node in nodes:
                children = node.children
                if (rest := children.get("#")) is not None:
                    matching.append(rest)
                if (any_level := children.get("+")) is not None:
                    below.append(any_level)
                if (exact := children.get(level)) is not None:
                    below.append(exact)
            nodes = below
            if len(nodes) > _MANY:
                self.walked += len(nodes)
        matching += nodes
        # "a/#" matches "a" as well.
        matching += [rest for node in nodes if (rest := node.children.get("#")) is not None]
        return matching
