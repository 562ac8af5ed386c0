"""A strict reader of generated pages: every element is closed in order, ids are unique, links are collected."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path

VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"})


class Page(HTMLParser):
    """The structure of one page; ``faults`` lists what is wrong with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.faults: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        if self._open:
            self.faults.append(f"never closed: {self._open}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._element(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._element(tag, attrs)
        if tag not in VOID and "svg" not in self._open:
            self.faults.append(f"<{tag}/> closes itself at {self.getpos()}")

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.faults.append(f"</{tag}> at {self.getpos()} while open: {self._open[-3:]}")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in {"script", "style"}:
            self.text += data

    def _element(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.text += " "  # elements part words
        named = {name: value or "" for name, value in attrs}
        if len(named) != len(attrs):
            self.faults.append(f"<{tag}> at {self.getpos()} repeats an attribute")
        self.elements.append((tag, named))
        if "id" in named:
            if named["id"] in self.ids:
                self.faults.append(f"id {named['id']} is used twice")
            self.ids.add(named["id"])
        self.links += [named[name] for name in ("href", "src") if name in named]
        for name in ("aria-labelledby", "data-plot"):
            if name in named:
                self.links.append(f"#{named[name]}")


def packed_bodies(path: Path) -> dict[str, str]:
    """The cases of an area's page, as its script unpacks them: anchor to HTML."""
    found = re.search(r'<script type="text/plain" id="packed">([^<]*)</script>', path.read_text(encoding="utf-8"))
    assert found is not None, path
    bodies: dict[str, str] = json.loads(zlib.decompress(base64.b64decode(found[1])))
    return bodies


def read_pages(site: Path) -> dict[Path, Page]:
    """Every page that the report wrote; raw files are other people's."""
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if "raw" not in path.relative_to(site).parts}
