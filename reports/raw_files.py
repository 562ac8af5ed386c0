"""Copy the files that a report links to into the site, so that the site can be moved or published on its own.

A path from a result file is never trusted: it must stay inside its run's folder. What is too large is named, not
copied.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import quote

import msgspec

from reports.collect import Run
from reports.humanise import bytes_size

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_TOTAL_BYTES = 256 * 1024 * 1024


class RawFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file beside a run, and where the site has it."""

    name: str
    path: str
    """As the run names it, relative to its folder."""
    href: str = ""
    """Relative to the site's root and quoted for a URL; empty when the site has no copy."""
    note: str = ""
    """Size, or why there is no copy."""


def path_inside(folder: Path, relative: str) -> Path | None:
    """The file that ``relative`` names below ``folder``; ``None`` when it would lead elsewhere or is no valid path."""
    try:
        resolved = (folder / relative).resolve()
        return resolved if relative and resolved.is_relative_to(folder.resolve()) else None
    except (OSError, ValueError):
        return None


class RawFiles:
    """Publishes raw files into ``<site>/raw``, within a total limit."""

    def __init__(self, site: Path) -> None:
        self._site = site
        self._left_bytes = MAX_TOTAL_BYTES
        self._published: dict[Path, RawFile] = {}

    def publish(self, run: Run, name: str, relative: str) -> RawFile:
        """Copy one file of the run's folder; the result says where it is or why it is not."""
        source = path_inside(run.folder, relative)
        if source is None:
            return RawFile(name=name, path=relative, note="outside the run's folder, not linked")
        if source.is_dir():
            return RawFile(name=name, path=relative, note="a folder beside the run's result")
        if not source.is_file():
            return RawFile(name=name, path=relative, note="missing")
        known = self._published.get(source)
        if known is not None:
            return msgspec.structs.replace(known, name=name, path=relative)
        size = source.stat().st_size
        if size > min(MAX_FILE_BYTES, self._left_bytes):
            return RawFile(name=name, path=relative, note=f"{bytes_size(size)}, too large to copy")
        target = Path("raw") / run.slug / source.relative_to(run.folder.resolve())
        (self._site / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, self._site / target)
        self._left_bytes -= size
        published = RawFile(name=name, path=relative, href=quote(target.as_posix()), note=bytes_size(size))
        self._published[source] = published
        return published
