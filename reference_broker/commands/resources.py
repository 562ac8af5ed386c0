"""What there is to operate, and how: one row for each verb. Requests and answers are described in docs/openapi.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from assay.reference_broker.clients.http_client import HttpQueues, path
from assay.reference_broker.clients.shared import RefusedError
from assay.reference_broker.commands.consume import Outcome, claim, settle_parameter
from assay.reference_broker.commands.ends import UsageError, say
from assay.reference_broker.commands.messages import MESSAGE_COLUMNS
from assay.reference_broker.commands.settings import settings_of
from assay.reference_broker.commands.shown import Column, joined, moment, size, span, yes
from assay.reference_broker.commands.verbs import Parameter, Place, Resource, Values, Verb, option, queue_names

_QUEUE: Final = Parameter("queue", "Its name; dlq/NAME are the dead letters of a queue.", complete=queue_names)
_GROUP: Final = Parameter("group", "Name of a consumer group.")
_SUBJECT: Final = Parameter("subject", "What the schema is of.")


def _limit(most: int = 1_000) -> Parameter:
    return option("limit", f"At most so many, up to {most}.", int, 100, "-n", place=Place.QUERY)


def _prefix(name: str = "prefix") -> Parameter:
    return Parameter(name, "Only names that start with it.", Place.QUERY, ("--prefix",), str, None)


# -- queues ----------------------------------------------------------------------------------------------------------

QUEUE_COLUMNS: Final = (
    Column("QUEUE", "queue"),
    Column("READY", "ready"),
    Column("IN FLIGHT", "in_flight"),
    Column("DELAYED", "delayed"),
    Column("DEAD", "dead_letters"),
    Column("CONSUMERS", "consumers"),
    Column("GROUPS", lambda row: len(row["groups"])),
    Column("PARTITIONS", "partitions"),
    Column("STORED", "stored_bytes", size),
    Column("DEPTH", "depth", wide=True),
    Column("ENQUEUED", "enqueued", wide=True),
    Column("REFUSED", "refused", wide=True),
    Column("EXPIRED", lambda row: row["expired"] + sum(each["expired"] for each in row["groups"]), wide=True),
    Column("FAILED", "failed", yes, wide=True),
)


def all_stats(client: HttpQueues, prefix: str | None = None) -> Iterator[dict[str, Any]]:
    """Of every queue that may be read, as they are when they are asked about."""
    names = client.ask("GET", "/queues", query={"prefix": prefix})
    for name in names.get("unusable", ()):
        say(f"warning: {name} cannot be opened, since something of it is damaged; the broker's log has more")
    for name in names["queues"]:
        try:
            yield client.ask("GET", path("/queues/{queue}/stats", queue=name))
        except RefusedError as error:
            if error.code != "unknown_queue":  # it was deleted meanwhile
                raise


def _list_queues(client: HttpQueues, values: Values) -> Any:
    if values["names"]:
        names = client.ask("GET", "/queues", query={"prefix": values["prefix"]})
        return names if not values["output"].is_table else _print_names(names["queues"])
    return list(all_stats(client, values["prefix"]))


def _print_names(names: list[str]) -> None:
    for name in names:
        print(name)


def _create_queue(client: HttpQueues, values: Values) -> Any:
    settings = settings_of(values["set"], file=values["file"])
    settings |= {"partitions": values["partitions"]} if values["partitions"] is not None else {}
    settings |= {"topics": values["bind"]} if values["bind"] else {}
    return client.ask("POST", "/queues", body={"name": values["queue"], "settings": settings})


def _update_queue(client: HttpQueues, values: Values) -> Any:
    settings = settings_of(values["set"], values["unset"], values["file"])
    count = values["partitions"]
    if not settings and count is None:
        raise UsageError("say what is to be otherwise: --set NAME=VALUE, --unset NAME, --file or --partitions")
    where = path("/queues/{queue}", queue=values["queue"])
    if count is not None:
        client.ask("PUT", f"{where}/partitions", body={"count": count})
    return client.ask("PATCH", where, body=settings)


def _bind(client: HttpQueues, values: Values) -> Any:
    return _rebind(client, values, lambda topics: [*topics, *(each for each in values["topics"] if each not in topics)])


def _unbind(client: HttpQueues, values: Values) -> Any:
    return _rebind(client, values, lambda topics: [each for each in topics if each not in values["topics"]])


def _rebind(client: HttpQueues, values: Values, change: Any) -> Any:
    where = path("/queues/{queue}/bindings", queue=values["queue"])
    return client.ask("PUT", where, body={"topics": change(client.ask("GET", where)["topics"])})


def _partitions(client: HttpQueues, values: Values) -> Any:
    answer = client.ask("GET", path("/topics/{topic}", topic=values["queue"]))
    if values["output"].is_table:
        places = answer["partition_offsets"].items()
        return [{"partition": int(number), **place} for number, place in places]
    return answer


_SETTINGS: Final = (
    option(
        "set",
        "A setting as in the configuration file, its name dotted: retry.max_retries=3. Repeatable.",
        list[str],
        [],
    ),
    option("file", "YAML file with settings.", str, None, "-f"),
    option("partitions", "How many partitions.", int, None, "-p"),
)
_FILTERS: Final = Parameter("topics", "Filters of topics, as shop/# is one.", Place.OWN, (), list[str])
_BINDINGS: Final = (Column("TOPIC", lambda row: row),)

QUEUE: Final = Resource(
    about="Create, look at, change and delete queues; bind them to topics of MQTT.",
    verbs=(
        Verb(
            name="list",
            about="Queues and their figures.",
            parameters=(
                _prefix(),
                option("names", "Names alone, one a line.", bool, False),
            ),
            run=_list_queues,
            rows=".",
            columns=QUEUE_COLUMNS,
        ),
        Verb(
            name="create",
            about="Create a queue.\n\nExample: assay queue create orders --partitions 3 --set durability=fsync",
            parameters=(
                _QUEUE,
                *_SETTINGS,
                option(
                    "bind",
                    "Messages of topics of MQTT that this filter matches come to it, too. Repeatable.",
                    list[str],
                    [],
                ),
            ),
            run=_create_queue,
            said="created {queue}",
        ),
        Verb(
            name="describe",
            about="How a queue is configured, by the names that --set takes.",
            parameters=(_QUEUE,),
            path="/queues/{queue}",
            rows="config",
        ),
        Verb(
            name="stats",
            about="Figures of a queue, and of its groups.",
            parameters=(_QUEUE,),
            path="/queues/{queue}/stats",
        ),
        Verb(
            name="update",
            about="Change a queue in use.\n\nExample: assay queue update orders --set retry.max_retries=3",
            parameters=(
                _QUEUE,
                *_SETTINGS,
                option("unset", "Take back a setting. Repeatable.", list[str], []),
            ),
            run=_update_queue,
            said="updated {queue}",
        ),
        Verb(
            name="delete",
            about="Delete a queue with all it holds.",
            parameters=(_QUEUE,),
            method="DELETE",
            path="/queues/{queue}",
            said="deleted {deleted}",
            asks="Delete {queue} with all its messages?",
        ),
        Verb(
            name="purge",
            about="Take away what is ready; what consumers hold stays theirs to settle.",
            parameters=(_QUEUE,),
            method="POST",
            path="/queues/{queue}/purge",
            said="purged {purged} messages",
            asks="Purge what is ready in {queue}?",
        ),
        Verb(
            name="peek",
            about="The oldest messages that are not settled; nothing is taken out.",
            parameters=(_QUEUE, _limit()),
            path="/queues/{queue}/messages",
            rows="messages",
            columns=MESSAGE_COLUMNS,
        ),
        Verb(
            name="partitions",
            about="Partitions, and the offsets of their messages.",
            parameters=(_QUEUE,),
            run=_partitions,
            rows=".",
            columns=(
                Column("PARTITION", "partition"),
                Column("EARLIEST", "earliest"),
                Column("NEXT", "latest"),
            ),
        ),
        Verb(
            name="consumers",
            about="Who consumes from a queue, over whatever protocol.",
            parameters=(_QUEUE,),
            path="/queues/{queue}/consumers",
            rows="consumers",
            columns=(
                Column("GROUP", "group"),
                Column("CONSUMER", "consumer"),
                Column("PARTITIONS", "partitions", joined),
                Column("IN FLIGHT", "in_flight"),
            ),
        ),
        Verb(
            name="bindings",
            about="Filters of the topics whose messages a queue gets, too.",
            parameters=(_QUEUE,),
            path="/queues/{queue}/bindings",
            rows="topics",
            columns=_BINDINGS,
        ),
        Verb(
            name="bind",
            about="Let a queue get what is published to topics of MQTT.\n\nExample: assay queue bind orders 'shop/#'",
            parameters=(_QUEUE, _FILTERS),
            run=_bind,
            rows="topics",
            columns=_BINDINGS,
        ),
        Verb(
            name="unbind",
            about="Take bindings away.",
            parameters=(_QUEUE, _FILTERS),
            run=_unbind,
            rows="topics",
            columns=_BINDINGS,
        ),
    ),
)

DLQ: Final = Resource(
    about="Dead letters: messages that failed too often, were rejected, or did not fit.",
    verbs=(
        Verb(
            name="stats",
            about="How many there were and are.",
            parameters=(_QUEUE,),
            path="/queues/{queue}/dlq",
        ),
        Verb(
            name="list",
            about="The oldest ones, with the reason; nothing is taken out.",
            parameters=(_QUEUE, _limit()),
            run=lambda client, values: client.ask(
                "GET",
                path("/queues/{queue}/messages", queue=f"dlq/{values['queue']}"),
                query={"limit": values["limit"]},
            ),
            rows="messages",
            columns=(
                *MESSAGE_COLUMNS,
                Column("REASON", lambda row: row.get("headers", {}).get("_dlq_reason", "")),
            ),
        ),
        Verb(
            name="replay",
            about="Send them back to their queue, as fresh messages.",
            parameters=(
                _QUEUE,
                option("message_id", "Only this one.", place=Place.BODY),
            ),
            method="POST",
            path="/queues/{queue}/dlq/replay",
            said="replayed {replayed}, skipped {skipped}, refused {failed}",
        ),
        Verb(
            name="purge",
            about="Take them away for good.",
            parameters=(_QUEUE,),
            method="POST",
            path="/queues/{queue}/dlq/purge",
            said="purged {purged} dead letters",
            asks="Purge the dead letters of {queue}?",
        ),
    ),
)

DELAYED: Final = Resource(
    about="Messages that wait for their time.",
    verbs=(
        Verb(
            name="list",
            about="In the order in which they were published.",
            parameters=(
                _QUEUE,
                _limit(),
                option("after", "Those behind this delay id.", place=Place.QUERY),
            ),
            path="/queues/{queue}/delayed",
            rows="messages",
            columns=(
                Column("DELAY ID", "delay_id"),
                Column("DELIVER AT", "deliver_at", moment),
                Column("BYTES", "payload_bytes"),
                Column("PUBLISHED", "published_at", moment, wide=True),
                Column("BY", "publisher", wide=True),
                Column("REFUSED", "refused", yes, wide=True),
            ),
        ),
        Verb(
            name="cancel",
            about="It is never delivered.",
            parameters=(_QUEUE, Parameter("delay_id", "As list shows it, or produce.")),
            method="DELETE",
            path="/queues/{queue}/delayed/{delay_id}",
            said="cancelled {delay_id}",
        ),
    ),
)

# -- groups ----------------------------------------------------------------------------------------------------------


def _list_groups(client: HttpQueues, values: Values) -> Any:
    if values["queue"]:
        return client.ask("GET", path("/queues/{queue}/groups", queue=values["queue"]))
    return client.ask("GET", "/groups")


_GROUP_PATH: Final = "/queues/{queue}/groups/{group}"

GROUP: Final = Resource(
    about="Consumer groups: where they stand, what they hold, and setting that right.",
    verbs=(
        Verb(
            name="list",
            about="Groups of a queue, or all that there are.",
            parameters=(Parameter("queue", "Only of this queue.", Place.OWN, (), str, None, complete=queue_names),),
            run=_list_groups,
            rows="groups",
            columns=(
                Column("GROUP", lambda row: row.get("group") or row.get("id")),
                Column("MEMBERS", lambda row: _count(row["members"])),
                Column("LAG", lambda row: row.get("lag", "")),
                Column("IN FLIGHT", lambda row: sum(each["in_flight"] for each in row.get("partitions", ()))),
                Column("GENERATION", "generation"),
                Column("QUEUES", lambda row: row.get("topics"), joined),
            ),
        ),
        Verb(
            name="create",
            about="Let a group begin before it has a consumer: from now on nothing goes before it has settled it.",
            parameters=(
                _QUEUE,
                Parameter("group", "Name of the new group.", Place.BODY),
            ),
            method="POST",
            path="/queues/{queue}/groups",
            said="created {group}",
        ),
        Verb(
            name="describe",
            about="Its members.",
            parameters=(_QUEUE, _GROUP),
            path=_GROUP_PATH,
            rows="members",
            columns=(
                Column("CONSUMER", "consumer"),
                Column("PARTITIONS", "partitions", joined),
                Column("IN FLIGHT", "in_flight"),
                Column("ACK MODE", "ack_mode"),
            ),
        ),
        Verb(
            name="lag",
            about="Where it stands in each partition, and how far behind it is.",
            parameters=(_QUEUE, _GROUP),
            path=_GROUP_PATH,
            rows="partitions",
            columns=(
                Column("PARTITION", "partition"),
                Column("COMMITTED", "committed"),
                Column("CURSOR", "cursor"),
                Column("END", "end"),
                Column("LAG", "lag"),
                Column("IN FLIGHT", "in_flight"),
                Column("WAITING", "waiting"),
                Column("OLDEST", "oldest_in_flight_s", span),
                Column("CONSUMER", "consumer"),
            ),
        ),
        Verb(
            name="pending",
            about="Messages that it has got and not settled.",
            parameters=(
                _QUEUE,
                _GROUP,
                _limit(),
                option("after", "Those behind PARTITION:OFFSET.", place=Place.QUERY),
            ),
            path=f"{_GROUP_PATH}/pending",
            rows="entries",
            columns=(
                Column("MESSAGE", "message_id"),
                Column("STATE", "state"),
                Column("CONSUMER", "consumer"),
                Column("DELIVERIES", "delivery_count"),
                Column("IDLE", "idle_s", span),
                Column("DUE", "due_at", moment),
            ),
            more="after=next",
        ),
        Verb(
            name="claim",
            about="Take over what its consumers have had for long, show it, and settle it."
            "\n\nExample: assay group claim orders billing --min-idle 600 --settle reject",
            parameters=(
                _QUEUE,
                _GROUP,
                Parameter("min_idle_s", "Held for so many seconds.", Place.OWN, ("--min-idle",), float, 0.0),
                option("limit", "At most so many.", int, 100, "-n"),
                option("partition", "With --offset: only this one.", int),
                option("offset", "With --partition.", int),
                settle_parameter(Outcome.RELEASE),
            ),
            run=claim,
        ),
        Verb(
            name="reset-offsets",
            about="Let it go on from another place; what is in flight becomes stale."
            "\n\nExample: assay group reset-offsets orders billing --to 2026-11-30T06:00:00Z",
            parameters=(
                _QUEUE,
                _GROUP,
                option(
                    "to", "earliest, latest, committed, an offset, or a time in RFC 3339.", str, ..., place=Place.BODY
                ),
                option("partition", "Only of this one.", int, None, "-p", place=Place.BODY),
            ),
            method="POST",
            path=f"{_GROUP_PATH}/reset",
            said="{group} goes on from, by partition: {cursors}",
            asks="Let {group} go on from {to}? What it holds becomes stale.",
        ),
        Verb(
            name="delete",
            about="Delete a group without consumers, for good.",
            parameters=(_QUEUE, _GROUP),
            method="DELETE",
            path=_GROUP_PATH,
            said="deleted {deleted}",
            asks="Delete the group {group} of {queue}?",
        ),
    ),
)


def _count(members: Any) -> int:
    return members if isinstance(members, int) else len(members)


# -- schemas ---------------------------------------------------------------------------------------------------------


def _schema_in(values: Values) -> dict[str, str]:
    return {"schemaType": "JSON", "schema": Path(values["file"]).read_text(encoding="utf-8")}


def _register(client: HttpQueues, values: Values) -> Any:
    return client.ask("POST", path("/schemas/subjects/{subject}/versions", **values), body=_schema_in(values))


def _check(client: HttpQueues, values: Values) -> Any:
    where = path("/compatibility/subjects/{subject}/versions", **values)
    verdict = client.ask("POST", where, query={"verbose": True}, body=_schema_in(values))
    if not verdict["is_compatible"]:
        raise RefusedError("schema_incompatible", "; ".join(verdict["messages"]) or "it may not be the next version")
    return verdict


def _delete_schema(client: HttpQueues, values: Values) -> Any:
    where = path("/subjects/{subject}", **values)
    if values["version"]:
        where += path("/versions/{version}", **values)
    return client.ask("DELETE", where, query={"permanent": values["permanent"]})


def _compatibility(client: HttpQueues, values: Values) -> Any:
    where = path("/schemas/config/{subject}", **values) if values["subject"] else "/schemas/config"
    if values["set"]:
        return client.ask("PUT", where, body={"compatibility": values["set"].upper()})
    return client.ask("GET", where)


_FILE: Final = Parameter("file", "File with the JSON Schema.", Place.OWN)

SCHEMA: Final = Resource(
    about="Schemas that queues hold messages against.",
    verbs=(
        Verb(
            name="list",
            about="Subjects, and the latest version of each.",
            parameters=(_prefix("subjectPrefix"),),
            run=lambda client, values: client.ask(
                "GET", "/schemas", query={"latestOnly": True, "subjectPrefix": values["subjectPrefix"]}
            ),
            rows=".",
            columns=(
                Column("SUBJECT", "subject"),
                Column("VERSION", "version"),
                Column("ID", "id"),
                Column("SCHEMA", "schema", wide=True),
            ),
        ),
        Verb(
            name="versions",
            about="Versions of a subject.",
            parameters=(_SUBJECT,),
            path="/subjects/{subject}/versions",
            rows=".",
            columns=(Column("VERSION", lambda row: row),),
        ),
        Verb(
            name="get",
            about="A version, with its text.",
            parameters=(_SUBJECT, Parameter("version", "Its number, or latest.", default="latest")),
            path="/subjects/{subject}/versions/{version}",
        ),
        Verb(
            name="register",
            about="Register the schema in a file as the next version, unless it is one already.",
            parameters=(_SUBJECT, _FILE),
            run=_register,
            said="{subject} has it as version {version}, id {id}",
        ),
        Verb(
            name="check",
            about="Whether the schema in a file could be the next version; what forbids it is told (exit status 1).",
            parameters=(_SUBJECT, _FILE),
            run=_check,
            said="it may be the next version of {subject}",
        ),
        Verb(
            name="delete",
            about="Delete a version or all of them: first so that they can still be read by id, then for good.",
            parameters=(
                _SUBJECT,
                option("version", "Only this one."),
                option("permanent", "For good.", bool, False),
            ),
            run=_delete_schema,
            said="deleted {answer}",
            asks="Delete schemas of {subject}?",
        ),
        Verb(
            name="compatibility",
            about="What may follow what: of a subject, or of all without a level of their own."
            "\n\nExample: assay schema compatibility orders-value --set FULL_TRANSITIVE",
            parameters=(
                Parameter("subject", "Left out: of all.", Place.OWN, (), str, None),
                option("set", "BACKWARD, FORWARD, FULL, each also _TRANSITIVE, NONE."),
            ),
            run=_compatibility,
            said="{compatibility}",
        ),
        Verb(name="stats", about="Figures.", path="/schemas/stats"),
    ),
)

# -- the broker as a whole -------------------------------------------------------------------------------------------

TRANSACTION: Final = Resource(
    about="Transactions that have not ended.",
    verbs=(
        Verb(
            name="list",
            about="The oldest first.",
            path="/transactions",
            rows="transactions",
            columns=(
                Column("TRANSACTION", "transaction_id"),
                Column("PRODUCER", "transactional_id"),
                Column("STATE", "state"),
                Column("MESSAGES", "messages"),
                Column("BEGAN", "began_at", moment),
                Column("ENDS BY", "ends_by", moment),
                Column("PARTITIONS", "partitions", joined, wide=True),
            ),
        ),
        Verb(name="stats", about="How many, by state.", path="/transactions/stats"),
    ),
)

TENANT: Final = Resource(
    about="Tenants, their quotas, and what they use. They are configured: change the file, then assay config reload.",
    verbs=(
        Verb(
            name="list",
            about="All of them.",
            path="/tenants",
            rows="tenants",
            columns=(
                Column("TENANT", "name"),
                Column("USERS", "users", joined),
                Column("QUEUES", "usage.queues"),
                Column("GROUPS", "usage.groups"),
                Column("STORED", "usage.stored_bytes", size),
                Column("CONNECTIONS", "connections"),
            ),
        ),
        Verb(
            name="quota",
            about="What a tenant may use, and what it does use.",
            parameters=(Parameter("tenant", "Its name."),),
            path="/tenants/{tenant}",
        ),
    ),
)

SESSION: Final = Resource(
    about="Sessions of MQTT.",
    verbs=(
        Verb(
            name="list",
            about="By client id.",
            parameters=(
                _prefix(),
                option("state", "connected or disconnected.", place=Place.QUERY),
                _limit(),
                option("page_token", "Those behind this client id.", place=Place.QUERY),
            ),
            path="/sessions",
            rows="sessions",
            columns=(
                Column("CLIENT", "client_id"),
                Column("USER", "username"),
                Column("STATE", "state"),
                Column("SUBSCRIPTIONS", "subscription_count"),
                Column("IN FLIGHT", "inflight_count"),
                Column("QUEUED", "offline_queue_depth"),
                Column("DROPPED", "dropped"),
                Column("TENANT", "tenant", wide=True),
                Column("EXPIRES AFTER", "expiry_interval", span, wide=True),
            ),
            more="page_token=next_page_token",
        ),
        Verb(
            name="describe",
            about="A session with its subscriptions.",
            parameters=(Parameter("client_id", "Of the client."),),
            path="/sessions/{client_id}",
        ),
    ),
)

SUBSCRIPTION: Final = Resource(
    about="Subscriptions of MQTT.",
    verbs=(
        Verb(
            name="list",
            about="Filters, and how many clients each has.",
            parameters=(
                _prefix(),
                _limit(),
                option("page_token", "Those behind this filter.", place=Place.QUERY),
            ),
            path="/subscriptions",
            rows="subscriptions",
            columns=(
                Column("FILTER", "filter"),
                Column("CLIENTS", "subscriber_count"),
                Column("QOS", "max_qos"),
            ),
            more="page_token=next_page_token",
        ),
        Verb(
            name="clients",
            about="Who has subscribed to a filter.",
            parameters=(
                Parameter("topic_filter", "As it was subscribed to."),
                _limit(),
                option("page_token", "Those behind this client id.", place=Place.QUERY),
            ),
            path="/subscriptions/{topic_filter}/clients",
            rows="clients",
            columns=(Column("CLIENT", "client_id"), Column("QOS", "qos")),
            more="page_token=next_page_token",
        ),
    ),
)

CLUSTER: Final = Resource(
    about="The nodes of a broker. The reference broker is one.",
    verbs=(
        Verb(
            name="nodes",
            about="Each with its state.",
            path="/cluster",
            rows="nodes",
            columns=(
                Column("NODE", "id"),
                Column("HEALTHY", "healthy", yes),
                Column("LEADER", "leader", yes),
                Column("UP", "uptime_seconds", span),
            ),
        ),
    ),
)

CONFIG: Final = Resource(
    about="The configuration of the broker.",
    verbs=(
        Verb(
            name="reload",
            about="Have it read users, tokens, access rules and tenants from its file again.",
            method="POST",
            path="/reload",
            said="read again; what waits for the next start: {needs_restart}",
        ),
    ),
)
