"""Judges the files that describe queues, and what lies beside the queues in a data directory."""

from __future__ import annotations

import msgspec

from assay.reference_broker.storage.description import ROOT, QueueDescription
from assay.reference_broker.storage.file_names import encode_name
from assay.reference_broker.storage.session_store import FOLDER as SESSIONS_FOLDER
from assay.reference_broker.storage.session_store import HERE as SESSIONS_MARK
from assay.reference_broker.storage.session_store import LOST as SESSIONS_LOST
from assay.reference_broker.storage_tools.findings import FindingKind, Findings, Severity
from assay.reference_broker.storage_tools.foreign.fluxmq_files import (
    CONFIG_PATH,
    MAX_JSON_BYTES,
    FluxMQFileError,
    decode_queue_configurations,
)
from assay.reference_broker.storage_tools.group_info import position_in
from assay.reference_broker.storage_tools.layout import (
    DESCRIPTION_NAME,
    IMPORTING_SUFFIX,
    UNREADABLE_JSON,
    QueuePlace,
    StoreFormat,
    StoreLayout,
)
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from assay.reference_broker.trace.described import described

_MAX_DESCRIPTION_BYTES = 64 * 1024


def check_descriptions(disk: ReadOnlyDisk, layout: StoreLayout, findings: Findings, *, in_use: bool) -> None:
    """Check every queue's description, and look for queues whose import or creation did not finish."""
    if layout.format is StoreFormat.ASSAY:
        if disk.exists(SESSIONS_MARK) and not disk.is_folder(SESSIONS_FOLDER):
            meaning = "all sessions and retained messages were in it; restore it, or a broker begins a new one"
            _add(findings, Severity.FAULT, FindingKind.MISSING_OFFSETS, SESSIONS_FOLDER, "it is missing", meaning)
        if disk.exists(SESSIONS_LOST):
            problem = "the folder of sessions was missing at a start, and a new one was begun"
            meaning = (
                "the sessions and retained messages of before are lost; repair takes note of it by dropping the file"
            )
            _add(findings, Severity.FAULT, FindingKind.SESSIONS_LOST, SESSIONS_LOST, problem, meaning)
        for name in disk.list(""):
            if name.startswith(f"{SESSIONS_FOLDER}.damaged-"):
                meaning = "a start put it aside and began a new one; delete it when nobody wants to look at it"
                _add(findings, Severity.NOTE, FindingKind.QUARANTINE, name, "sessions that could not be read", meaning)
        for queue in layout.queues:
            if not queue.is_internal:
                _check_assay(disk, queue, findings)
        for name in disk.list(ROOT):
            if name.endswith(IMPORTING_SUFFIX):
                meaning = "the queue does not exist yet; import it again, or let repair drop what is there"
                _add(
                    findings, Severity.WARNING, FindingKind.LEFTOVER, f"{ROOT}/{name}", "an unfinished import", meaning
                )
    elif layout.format is not StoreFormat.GOQUEUE:
        _check_fluxmq(disk, findings)
    for queue in layout.queues:
        for name in disk.list(queue.folder):
            if name.endswith(".tmp"):
                meaning = "a broker writes it anew when it needs to; repair drops it"
                findings.leftover(f"{queue.folder}/{name}", meaning, in_use=in_use)


def _check_assay(disk: ReadOnlyDisk, queue: QueuePlace, findings: Findings) -> None:
    path = f"{queue.folder}/{DESCRIPTION_NAME}"
    try:
        data = disk.read(path, _MAX_DESCRIPTION_BYTES)
        description = msgspec.json.decode(data, type=described(QueueDescription))
    except FileNotFoundError:
        has_records = any(disk.size(one.path) for place in queue.partitions for one in place.segments)
        if has_records:
            meaning = (
                "a broker does not see the queue, although it has records; write the file again, with version 1, "
                "the queue's name and its number of partitions, as another directory's queue.json shows"
            )
            _add(findings, Severity.FAULT, FindingKind.DESCRIPTION_DAMAGED, path, "it is missing", meaning)
        else:
            meaning = "the broker stopped while it created the queue; nothing was ever confirmed in it"
            _add(findings, Severity.WARNING, FindingKind.DESCRIPTION_DAMAGED, path, "it is missing", meaning)
        return
    except OSError as error:
        findings.unreadable(path, error)
        return
    except UNREADABLE_JSON as error:
        meaning = "a broker refuses the queue; restore the file: name and number of partitions must be right"
        problem = f"it does not decode: {error}"
        _add(findings, Severity.FAULT, FindingKind.DESCRIPTION_DAMAGED, path, problem, meaning)
        return
    problem = _contradiction(description, queue)
    if problem:
        meaning = "the file belongs to another queue or is damaged; restore the right one"
        _add(findings, Severity.FAULT, FindingKind.DESCRIPTION_DAMAGED, path, problem, meaning)


def _contradiction(description: QueueDescription, queue: QueuePlace) -> str:
    """What is wrong with a description that decodes; empty when nothing is."""
    if description.version != 1:
        return f"version {description.version}; this program reads version 1"
    if not description.name or encode_name(description.name) != queue.folder.rpartition("/")[2]:
        return f"it describes the queue {description.name!r}, whose folder this is not"
    highest = max((place.partition for place in queue.partitions), default=-1)
    if not 0 < description.partitions <= 1 << 20:
        return f"a queue with {description.partitions} partitions"
    if highest >= description.partitions:
        return f"it says {description.partitions} partitions, but there is a partition {highest}"
    return ""


def _check_fluxmq(disk: ReadOnlyDisk, findings: Findings) -> None:
    try:
        decode_queue_configurations(disk.read(CONFIG_PATH, MAX_JSON_BYTES))
    except FileNotFoundError:
        return
    except (OSError, FluxMQFileError) as error:
        meaning = "the queues' settings are lost, their records are not; restore the file"
        _add(findings, Severity.FAULT, FindingKind.DESCRIPTION_DAMAGED, CONFIG_PATH, str(error), meaning)


def _add(findings: Findings, severity: Severity, kind: FindingKind, path: str, problem: str, meaning: str) -> None:
    findings.report(severity, kind, path, problem, meaning, position=position_in(problem))
