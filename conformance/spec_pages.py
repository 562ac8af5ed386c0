"""The specification of the durable queues, ``docs/spec/*.md``, as data: the registry is written from it.

A page is a title, two or three lines of introduction and a table ``| id | level | requirement | from |``. Where a
black-box client cannot judge a requirement, a list says so::

    ## Not seen from outside

    - Q-API-03 (no): nobody but the embedding program can call it; tests/test_embedded.py does.

``python -m assay.conformance.spec_pages`` writes ``conformance/registry/queue.toml`` and the list in
``docs/spec/README.md`` anew; a test holds both equal to the pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "spec"
INDEX = FOLDER / "README.md"
REGISTRY = ROOT / "conformance" / "registry" / "queue.toml"

PREFIXES = {
    "addressing": ("ADDR", "PUBLISH", "CONTROL"),
    "bindings": ("BIND",),
    "partitions": ("PART",),
    "lifecycle": ("LIFE",),
    "groups": ("GROUP", "DELIVER"),
    "assignment": ("ASSIGN",),
    "cursors": ("CURSOR",),
    "settlement": ("SETTLE", "ACK", "NACK", "DELIVER"),
    "retry": ("RETRY",),
    "dead-letters": ("DLQ", "REJECT"),
    "ordering": ("ORDER", "DELIVER"),
    "delay": ("DELAY",),
    "priority": ("PRIO",),
    "limits": ("LIMIT",),
    "transactions": ("TXN",),
    "idempotence": ("IDEM",),
    "durability": ("DURA", "PUBLISH"),
    "request-response": ("REQ",),
    "admin": ("ADMIN",),
    "embedded": ("API",),
    "tenants": ("TENANT",),
    "access": ("ACCESS",),
}
"""Pages in the order of reading, with what their ids begin with."""
_FIRST = {"PUBLISH": 2, "DELIVER": 3, "ACK": 3, "NACK": 1, "REJECT": 1, "CONTROL": 2}
FIRST_IDS = frozenset(f"Q-{name}-{number}" for name, count in _FIRST.items() for number in range(1, count + 1))
"""Ids from before there were pages: permanent, although they have one digit."""
LEVELS = ("MUST", "SHOULD", "MAY")
MAX_TEXT_CHARACTERS = 240

_ROW = re.compile(r"\| (?P<id>Q-\S+) \| (?P<level>\S+) \| (?P<text>.*?) \| (?P<source>[^|]*?) \|")
_UNSEEN = re.compile(r"- (?P<id>Q-\S+) \((?P<testable>no|partly)\): (?P<reason>.+)")
_SOURCE = re.compile(r"((seed )?00[0-4]|decision|ours|[FORGP]\d+|4\.5)\b.*")
_BEGIN, _END = "<!-- list of pages -->", "<!-- end of the list -->"
_HEAD = """\
# Requirements of the durable queues, which no standard numbers. Same fields as the MQTT registries.
# Written from docs/spec by python -m assay.conformance.spec_pages: change the pages.
"""


class PageError(ValueError):
    """A page is not written as this module reads it; the text names page and line."""


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a page's table."""

    id: str
    level: str
    text: str
    source: str
    """Seeds, decision, rows of known bugs, or ours."""
    testable: str = "yes"
    """As in the registry: yes, partly, no."""
    reason: str = ""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the specification."""

    name: str
    """Of the file, without suffix."""
    title: str
    requirements: tuple[Requirement, ...]


def read_page(path: Path) -> Page:
    """Parse a page. Raises :class:`PageError`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows: list[re.Match[str]] = []
    unseen: dict[str, re.Match[str]] = {}
    for number, line in enumerate(lines, start=1):
        row, remark = _ROW.fullmatch(line), _UNSEEN.fullmatch(line)
        if row is not None:
            rows.append(row)
        elif remark is not None:
            unseen[remark["id"]] = remark
        elif line.startswith(("| Q-", "- Q-")):
            message = f"{path.name}:{number}: neither a row of a requirement nor a reason: {line}"
            raise PageError(message)
    strangers = unseen.keys() - {row["id"] for row in rows}
    if strangers or not lines or not lines[0].startswith("# "):
        message = f"{path.name}: no title, or reasons without requirement: {sorted(strangers)}"
        raise PageError(message)
    requirements = tuple(
        Requirement(
            id=row["id"],
            level=row["level"],
            text=row["text"].replace(r"\|", "|"),
            source=row["source"],
            testable=unseen[row["id"]]["testable"] if row["id"] in unseen else "yes",
            reason=unseen[row["id"]]["reason"] if row["id"] in unseen else "",
        )
        for row in rows
    )
    return Page(name=path.stem, title=lines[0].removeprefix("# "), requirements=requirements)


def read_pages(folder: Path = FOLDER) -> list[Page]:
    """All pages, in the order of :data:`PREFIXES`. Raises :class:`PageError`."""
    names = {path.stem for path in folder.glob("*.md")} - {INDEX.stem}
    unknown = names - PREFIXES.keys()
    if unknown:
        message = f"pages that PREFIXES does not name: {', '.join(sorted(unknown))}"
        raise PageError(message)
    return [read_page(folder / f"{name}.md") for name in PREFIXES if name in names]


def problems(pages: list[Page]) -> Iterator[str]:
    """What is wrong with ids, levels, texts and sources."""
    seen: set[str] = set()
    texts: set[str] = set()
    for page in pages:
        if not page.requirements:
            yield f"{page.name}: no requirement"
        for entry in page.requirements:
            match = re.fullmatch(r"Q-([A-Z]+)-(\d+)", entry.id)
            if match is None or match[1] not in PREFIXES[page.name]:
                yield f"{entry.id} does not belong to the page {page.name}"
            elif len(match[2]) != 2 and entry.id not in FIRST_IDS:
                yield f"{entry.id}: two digits"
            if entry.id in seen or entry.text in texts:
                yield f"{entry.id}: id or text is there twice"
            seen.add(entry.id)
            texts.add(entry.text)
            if entry.level not in LEVELS:
                yield f"{entry.id}: level {entry.level}"
            if not 20 < len(entry.text) <= MAX_TEXT_CHARACTERS or not entry.text.endswith("."):
                yield f"{entry.id}: a sentence of 21 to {MAX_TEXT_CHARACTERS} characters, not {len(entry.text)}"
            if not all(_SOURCE.fullmatch(part.strip()) for part in entry.source.split(",")):
                yield f"{entry.id}: from {entry.source!r}"


def registry_text(pages: list[Page]) -> str:
    """The registry file that mirrors ``pages``."""
    blocks = [_HEAD]
    for page in pages:
        for entry in page.requirements:
            fields = {
                "id": entry.id,
                "section": page.name,
                "level": entry.level,
                "role": "server",
                "testable": entry.testable,
                "sentence": entry.text,
                "reason": entry.reason,
            }
            lines = [f"{key} = {msgspec.json.encode(value).decode()}\n" for key, value in fields.items()]
            blocks.append("[[statement]]\n" + "".join(lines))
    return "\n".join(blocks)


def index_text(text: str, pages: list[Page]) -> str:
    """``text`` of the index with its list of pages replaced. Raises :class:`PageError` where it has no place for it."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        message = f"{INDEX.name} needs the lines {_BEGIN} and {_END}"
        raise PageError(message)
    rows = "".join(
        f"| [{page.title}]({page.name}.md) | {', '.join(f'`Q-{name}`' for name in PREFIXES[page.name])} |"
        f" {len(page.requirements)} |\n"
        for page in pages
    )
    return f"{before}{begin}\n| page | ids | requirements |\n| --- | --- | --- |\n{rows}{end}{after}"


def state_diagram(transitions: Iterable[tuple[str, str, str]]) -> str:
    """A transition table as the Mermaid drawing of a page: source, event ("" = without a name) and target."""
    lines = [f"    {source} --> {target}{f': {event}' if event else ''}\n" for source, event, target in transitions]
    return "```mermaid\nstateDiagram-v2\n" + "".join(lines) + "```\n"


def main() -> int:
    """Write the registry and the index."""
    pages = read_pages()
    found = list(problems(pages))
    print("\n".join(found) or f"{sum(len(page.requirements) for page in pages)} requirements on {len(pages)} pages")
    if not found:
        REGISTRY.write_text(registry_text(pages), encoding="utf-8")
        INDEX.write_text(index_text(INDEX.read_text(encoding="utf-8"), pages), encoding="utf-8")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
