"""Copy the files that a report links to into the site, so that the site can be moved or published on its own.

A path from a result file is never trusted: it must stay inside its run's folder. What is too large is named, not
copied. Text that is long is compressed, and the transcripts of a run share one archive: they repeat themselves.
"""

from __future__ import annotations

import gzip
import io
import lzma
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from assay.reports.collect import Run
from assay.reports.humanise import bytes_size

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_TOTAL_BYTES = 256 * 1024 * 1024
PLAIN_MAX_BYTES: Final = 64 * 1024
"""Longer text is compressed: browsers open the rest as it is."""
TEXT_SUFFIXES: Final = frozenset({".json", ".jsonl", ".ipynb", ".log", ".csv", ".txt", ".yaml"})
TRANSCRIPTS_ARCHIVE: Final = "transcripts.tar.xz"
PLOTLY_FILE: Final = "plotly.min.js"
_OWN_PLOTLY: Final = re.compile(rb'src="plotly\.min\.js"')


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
    except (OSError, ValueError, RuntimeError):
        return None


class RawFiles:
    """Publishes raw files into ``<site>/raw``, within a total limit."""

    def __init__(self, site: Path) -> None:
        self._site = site
        self._left_bytes = MAX_TOTAL_BYTES
        self._published: dict[Path, RawFile] = {}
        self._archives: dict[str, tarfile.TarFile] = {}
        self._archived: set[Path] = set()

    def publish(self, run: Run, name: str, relative: str) -> RawFile:
        """Copy one file of the run's folder; the result says where it is or why it is not."""
        source, refused = self._source(run, name, relative)
        if source is None:
            return refused
        known = self._published.get(source)
        if known is not None:
            return msgspec.structs.replace(known, name=name, path=relative)
        target = Path("raw") / run.slug / source.relative_to(run.folder.resolve())
        try:
            published = self._copy(source, target, name, relative)
        except OSError as error:
            return RawFile(name=name, path=relative, note=f"cannot be read: {error.strerror or error}")
        self._published[source] = published
        return published

    def archive(self, run: Run, relative: str) -> RawFile:
        """Put one transcript into the archive of its run; the result names the archive."""
        source, refused = self._source(run, "transcript", relative)
        if source is None:
            return refused
        place = Path("raw") / run.slug / TRANSCRIPTS_ARCHIVE
        member = source.relative_to(run.folder.resolve()).as_posix()
        try:
            data = source.read_bytes()
        except OSError as error:
            return RawFile(name="transcript", path=relative, note=f"cannot be read: {error.strerror or error}")
        archive = self._archives.get(run.slug)
        if archive is None:
            (self._site / place).parent.mkdir(parents=True, exist_ok=True)
            # Twice the time of the ordinary search, for a sixth less.
            preset: Any = 6 | lzma.PRESET_EXTREME  # the stubs know single digits alone
            archive = tarfile.open(self._site / place, "w:xz", preset=preset)  # noqa: SIM115 - closed by close()
            self._archives[run.slug] = archive
        if source not in self._archived:
            self._archived.add(source)
            about = tarfile.TarInfo(member)  # without time and owner: the same input gives the same bytes
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
            self._left_bytes -= len(data)
        note = f"{bytes_size(len(data))}, {member} in the archive"
        return RawFile(name="transcript", path=relative, href=quote(place.as_posix()), note=note)

    def close(self) -> None:
        """Write the ends of the archives."""
        for archive in self._archives.values():
            archive.close()

    def archive_of(self, run: Run) -> RawFile:
        """Where the archive of a run is, or will be."""
        place = Path("raw") / run.slug / TRANSCRIPTS_ARCHIVE
        href = quote(place.as_posix()) if run.slug in self._archives else ""
        return RawFile(name="transcripts", path=TRANSCRIPTS_ARCHIVE, href=href)

    def _source(self, run: Run, name: str, relative: str) -> tuple[Path | None, RawFile]:
        """The file to publish, or the reason why it is not."""

        def refuse(note: str) -> tuple[None, RawFile]:
            return None, RawFile(name=name, path=relative, note=note)

        source = path_inside(run.folder, relative)
        if source is None:
            return refuse("outside the run's folder, not linked")
        try:
            if source.is_dir():
                return refuse("a folder beside the run's result")
            if not source.is_file():
                return refuse("missing")
            size = source.stat().st_size
        except OSError as error:
            return refuse(f"cannot be read: {error.strerror or error}")
        if source not in self._published and size > min(MAX_FILE_BYTES, self._left_bytes):
            return refuse(f"{bytes_size(size)}, too large to copy")
        return source, RawFile(name=name, path=relative)

    def _copy(self, source: Path, target: Path, name: str, relative: str) -> RawFile:
        size = source.stat().st_size
        (self._site / target).parent.mkdir(parents=True, exist_ok=True)
        note = bytes_size(size)
        if source.suffix in TEXT_SUFFIXES and size > PLAIN_MAX_BYTES:
            target = target.with_name(f"{target.name}.gz")
            with (self._site / target).open("wb") as sink:
                sink.write(gzip.compress(source.read_bytes(), 9, mtime=0))
            note += f", compressed to {bytes_size((self._site / target).stat().st_size)}"
        elif source.suffix == ".html":
            # The notebook draws with the very script that the site has already.
            shared = "/".join([*[".."] * (len(target.parts) - 1), "assets", PLOTLY_FILE])
            text = _OWN_PLOTLY.sub(f'src="{shared}"'.encode(), source.read_bytes())
            (self._site / target).write_bytes(text)
        else:
            shutil.copyfile(source, self._site / target)
        self._left_bytes -= size
        return RawFile(name=name, path=relative, href=quote(target.as_posix()), note=note)
