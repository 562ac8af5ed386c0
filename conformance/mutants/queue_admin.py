"""Bugs of administering queues."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker import config as config_module
from assay.reference_broker.config import ConfigError, QueueConfig
from assay.reference_broker.mqtt.sessions.queue_admin import QueueAdmin
from assay.reference_broker.queues.admin import admin
from assay.reference_broker.queues.admin.admin import ListRequest, QueueNames
from assay.reference_broker.queues.admin.admin_request import AdminRequest
from assay.reference_broker.queues.engine import QueueEngine
from assay.reference_broker.queues.groups.pending import EntryState
from assay.reference_broker.queues.jobs.confirms import Confirm, ignore
from assay.reference_broker.queues.jobs.store import NewRecord, PartitionLog
from assay.reference_broker.queues.operations import purge
from assay.reference_broker.queues.queue.queue import DurableQueue
from assay.reference_broker.queues.registry import registry
from assay.reference_broker.queues.registry.registry import QueueRegistry
from assay.reference_broker.queues.registry.removal import Removal
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage import queue_store
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.queue_store import LogQueueFiles


@mutant("queue-answers-without-correlation", "answers of the administration lack the correlation data")
def without_correlation(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def answer(self: QueueAdmin, request: Message, topic: str, payload: bytes) -> None:
            original(self, msgspec.structs.replace(request, correlation_data=None), topic, payload)

        return answer

    patch.wrap(QueueAdmin, "send_answer", make)


@mutant("queue-create-overwrites", "creating a queue that is there changes it")
def overwrites(patch: Patch) -> None:
    def make(original: Callable[..., DurableQueue]) -> Callable[..., DurableQueue]:
        def create(self: QueueRegistry, name: str, settings: dict[str, Any]) -> DurableQueue:
            if name not in self.queues:
                return original(self, name, settings)
            self.update(name, settings, ignore)
            return self.queues[name]

        return create

    patch.wrap(QueueRegistry, "create", make)


@mutant("queue-time-to-live-of-its-creation", "another time to live of a queue is told, and the first one holds")
def first_time_to_live(patch: Patch) -> None:
    patch.rewrite(DurableQueue, "apply", "self._codec.ttl_s = config.message_ttl_s", "pass")


@mutant("queue-partitioner-of-its-creation", "another partitioner of a queue is told, and the first one holds")
def first_partitioner(patch: Patch) -> None:
    patch.rewrite(DurableQueue, "apply", "if config.partitioner is not self.config.partitioner:", "if False:")


@mutant("queue-changes-hold-after-a-restart", "changed settings are written down and told, but hold only later")
def hold_later(patch: Patch) -> None:
    def reconfigure(self: DurableQueue, config: QueueConfig, settings: dict[str, Any], on_done: Confirm) -> None:
        self.wanted, self.settings = config, settings
        self._files.update_description(settings=settings)
        self.when_remembered(on_done)

    def queue_config(self: QueueEngine, name: str) -> tuple[QueueConfig, dict[str, Any]]:
        queue = self._existing(name)
        return self._registry.merged_config(name, queue.settings), queue.settings

    patch.replace(DurableQueue, "reconfigure", reconfigure)
    patch.replace(QueueEngine, "queue_config", queue_config)


@mutant("queue-file-wins-over-run-time", "after a restart the configuration file counts more than run time")
def file_wins(patch: Patch) -> None:
    def make(original: Callable[..., QueueConfig]) -> Callable[..., QueueConfig]:
        def config_of(self: QueueRegistry, name: str, settings: dict[str, Any]) -> QueueConfig:
            opening = name in self._configured and name not in self.queues
            return original(self, name, {} if opening else settings)

        return config_of

    patch.wrap(QueueRegistry, "merged_config", make)


@mutant("queue-unknown-settings-ignored", "settings that nobody knows are left out")
def ignored(patch: Patch) -> None:
    def make(original: Callable[..., QueueConfig]) -> Callable[..., QueueConfig]:
        def with_settings(config: QueueConfig, settings: dict[str, Any]) -> QueueConfig:
            known = {name: value for name, value in settings.items() if name in QueueConfig.__struct_fields__}
            try:
                return original(config, known)
            except ConfigError:
                return config

        return with_settings

    patch.wrap(registry, "with_settings", make)


@mutant("queue-delete-keeps-the-messages", "deleting a queue leaves its messages, on disk or in memory")
def keeps_messages(patch: Patch) -> None:
    kept: dict[str, PartitionLog] = {}

    def make_open(original: Callable[..., PartitionLog]) -> Callable[..., PartitionLog]:
        def open_partition(self: LogQueueFiles, index: int) -> PartitionLog:
            log = original(self, index)
            place = f"{self.description.current.name}/{index}"
            if place in kept and not log.next_offset:
                log.append([NewRecord(*record[1:]) for record in kept[place].read(0, 100)])
            kept[place] = log
            return log

        return open_partition

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def remove(disk: Disk, path: str) -> None:
            if "/partitions" not in path:
                original(disk, path)

        return remove

    patch.wrap(queue_store, "remove_tree", make)
    patch.wrap(LogQueueFiles, "open_partition", make_open)


@mutant("queue-delete-forgets-the-groups", "deleting a queue leaves the logs of its groups")
def forgets_groups(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def remove(disk: Disk, path: str) -> None:
            if "/consumers" not in path:
                original(disk, path)

        return remove

    patch.wrap(queue_store, "remove_tree", make)


@mutant("queue-delete-unannounced", "consumers of a deleted queue are not told")
def unannounced(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: Removal, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            self.consumers = []

        return init

    patch.wrap(Removal, "__init__", make)


@mutant("queue-purge-takes-what-is-in-flight", "a purge also takes away what consumers hold")
def takes_in_flight(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def begin(self: purge.Purge) -> None:
            for group in self._queue.groups.values():
                for place in group.every_place:
                    for entry in list(place.pending.values()):
                        if entry.state is EntryState.DELIVERED:
                            group.discard(entry, "purged")
            original(self)

        return begin

    patch.wrap(purge.Purge, "begin", make)


@mutant("queue-purge-forgotten", "what was purged is only known in memory")
def purge_forgotten(patch: Patch) -> None:
    patch.replace(DurableQueue, "remember_purge", lambda self, ends, on_done: on_done(None))


@mutant("queue-purge-by-prefix", "a purge takes every queue whose name begins with the one named")
def by_prefix(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def purge_queue(self: QueueEngine, name: str, now: float, on_done: Any) -> None:
            for other in self.queues():
                if other.startswith(name) and other != name:
                    original(self, other, now, lambda _result: None)
            original(self, name, now, on_done)

        return purge_queue

    patch.wrap(QueueEngine, "purge_queue", make)


@mutant("queue-figures-once", "who subscribes to figures gets them once")
def figures_once(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def publish(self: QueueAdmin, now: float) -> None:
            original(self, now)
            if self._timer is not None:
                self._timer.cancel()

        return publish

    patch.wrap(QueueAdmin, "publish_figures", make)


@mutant("queue-admin-for-everybody", "any client may administer")
def for_everybody(patch: Patch) -> None:
    patch.replace(QueueAdmin, "allows", lambda self, topic, grants, *, loopback, read: True)


@mutant("queue-admin-requests-routed", "a request also goes to those who subscribe to its topic")
def routed(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def request(
            self: QueueAdmin, message: Message, may_publish: Callable[[str], bool], now: float, on_done: Confirm
        ) -> None:
            self._state.publish_figure(message)
            original(self, message, may_publish, now, on_done)

        return request

    patch.wrap(QueueAdmin, "request", make)


@mutant("queue-ephemeral-expires-in-use", "an ephemeral queue ends its time after it was created, consumers or not")
def expires_in_use(patch: Patch) -> None:
    patch.replace(DurableQueue, "consumer_count", 0)


@mutant("queue-template-fits-prefixes", "a pattern of a template also fits names that only begin like it")
def fits_prefixes(patch: Patch) -> None:
    patch.replace(config_module, "fnmatchcase", lambda name, pattern: fnmatchcase(name, f"{pattern}*"))


@mutant("queue-list-ignores-the-prefix", "the list of queues names all, whatever the prefix")
def list_all(patch: Patch) -> None:
    def listed(engine: QueueEngine, request: AdminRequest) -> None:
        request.read(ListRequest)
        request.answer(QueueNames(queues=engine.queues()))

    patch.item(admin.GENERAL_OPERATIONS, "list", listed)


@mutant("queue-deletes-under-a-transaction", "a queue is deleted although a transaction is open in it")
def under_a_transaction(patch: Patch) -> None:
    patch.replace(registry, "check_removable", lambda queue: None)
