// One queue: its figures, messages, groups and who has what, dead letters, delayed messages, settings.
import { api, path, query } from "./api.js";
import { chart, rates } from "./charts.js";
import { bytes, duration, empty, field, h, kept, moment, number, plural, put, select, show, sync, table } from "./dom.js";
import { age, message } from "./messages.js";
import { act, confirmByName, dialog, parsed, toast } from "./ui.js";
import { BASE, followed, lag, publishCommand, topicOf, toQueue } from "./views_queues.js";

const EVERY_MS = 2000;
const PAGE = 100;
const TABS = [
  ["", "Figures", figures],
  ["messages", "Messages", messages],
  ["groups", "Groups", groups],
  ["dead-letters", "Dead letters", deadLetters],
  ["delayed", "Delayed", delayed],
  ["settings", "Settings", settings],
];

const isLetters = (name) => name.startsWith("$dlq/");

export function queue(ctx) {
  const [name, tab = ""] = ctx.params;
  ctx.queue = name;
  ctx.at = `queues/${path(name)}`;
  const shown = TABS.filter(([each]) => !isLetters(name) || !["dead-letters", "delayed"].includes(each));
  ctx.title(
    name,
    h("div.buttons", 
      h("a.button", { href: `#/live?queue=${encodeURIComponent(name)}` }, "Publish"),
      act("Purge…", "admin", () =>
        confirmByName(`Purge ${name}`, "All messages that are ready are taken away for good; what consumers hold stays theirs to settle.", name, "Purge", async () => {
          const { purged } = await api.post(`${ctx.at}/purge`);
          toast(`${plural(purged, "message")} purged from ${name}.`);
        }),
      ),
      act("Delete…", "admin", () =>
        confirmByName(`Delete ${name}`, "The queue goes for good with all it holds, its groups and its delayed messages.", name, "Delete", async () => {
          await api.remove(ctx.at);
          toast(`Queue ${name} is deleted.`);
          location.hash = "#/queues";
        }),
      ),
    ),
  );
  ctx.body.prepend(h("p.crumbs", h("a", { href: "#/queues" }, "Queues"), " / "));
  ctx.add(
    h("nav.tabs", { "aria-label": `Parts of ${name}` }, shown.map(([each, label]) => h("a", { href: toQueue(name, each), "aria-current": each === tab ? "page" : undefined }, label))),
  );
  const found = shown.find(([each]) => each === tab) ?? TABS[0];
  found[2](ctx);
}

function tiles(names) {
  const values = names.map(() => h("dd", "–"));
  return {
    node: h("dl.tiles", names.map((name, index) => h("div", h("dt", name), values[index]))),
    set: (texts) => texts.forEach((text, index) => put(values[index], text)),
  };
}

function figures(ctx) {
  const counts = tiles(["Depth", "Greatest lag", "In flight", "Consumers", "Dead letters", "Delayed", "Stored", "Refused"]);
  const charts = [
    chart("Messages that wait", [["depth", "depth"], ["in_flight", "in flight"], ["lag", "lag"]]),
    rates("Messages per second", [["taken", "in"], ["delivered", "delivered"], ["settled", "settled"]]),
  ];
  const failed = h("p.problem", { hidden: true }, "A write failed for good: this queue refuses work until the broker restarts. Its log says why.");
  const parts = table(
    "Partitions",
    [
      ["Partition", (each) => String(each.index)],
      ["First kept", (each) => number(each.earliest), { num: true }],
      ["Next offset", (each) => number(each.latest), { num: true }],
      ["Kept", (each) => number(each.latest - each.earliest), { num: true }],
    ],
    (each) => each.index,
  );
  const more = h("p.muted", { hidden: true });
  const none = empty("Nothing was published yet", "Publish in Live, over MQTT to $queue/<name>, or by:", publishCommand(ctx.queue));
  ctx.add(failed, counts.node, h("div.charts", charts.map((each) => each.node)), none, h("section", h("h2", "Partitions"), parts.node, more));
  ctx.every(EVERY_MS, async (signal) => {
    const [stats, places] = await Promise.all([api.get(`${ctx.at}/stats`, signal), api.get(`topics/${path(topicOf(ctx.queue))}`, signal)]);
    const points = followed(stats);
    charts.forEach((each) => each.set(points));
    counts.set([
      number(stats.depth), number(lag(stats)), number(stats.in_flight), number(stats.consumers),
      number(stats.dead_letters), number(stats.delayed), bytes(stats.stored_bytes), number(stats.refused),
    ]);
    show(failed, stats.failed);
    const all = Object.entries(places.partition_offsets).map(([index, ends]) => ({ index: Number(index), ...ends }));
    parts.set(all.slice(0, PAGE));
    put(more, `And ${plural(all.length - PAGE, "more partition")}.`);
    show(more, all.length > PAGE);
    show(none, all.every((each) => each.latest === 0) && !stats.delayed);
  });
}

function messages(ctx) {
  const mode = select([["ready", "The oldest that some group has not settled"], ["all", "All that are kept, by partition"]]);
  const partition = h("input", { type: "number", min: 0, value: "0" });
  const from = h("input", { type: "text", value: "earliest", list: "places", spellcheck: "false" });
  const controls = h("div.row", field("Partition", partition), field("From", from, "earliest, latest, an offset, or a time as 2030-01-31T12:00:00Z"));
  const list = h("div.messages.roving");
  const none = h("p.empty", { hidden: true }, "Nothing to see here.");
  const next = h("button", { type: "button" }, `Next ${PAGE}`);
  const look = act("Look", "read", () => read(from.value));
  let going = 0;
  async function read(start) {
    const asked = ++going;
    const all = mode.value === "all";
    show(controls, all);
    const answer = await api.get(
      all ? `${ctx.at}/partitions/${Number(partition.value)}/messages${query({ from: start, limit: PAGE })}` : `${ctx.at}/messages?limit=${PAGE}`,
      ctx.signal,
    );
    if (asked !== going) {
      return; // another was asked for meanwhile
    }
    list.replaceChildren(...answer.messages.map((each) => message(each)));
    show(none, answer.messages.length === 0);
    show(next, all && answer.messages.length === PAGE);
    next.onclick = () => read(String(answer.next_offset)).catch((error) => ctx.told(error, 0, { now: () => read(start) }));
  }
  mode.addEventListener("change", () => look.click());
  ctx.add(
    h("p.muted", "Looking takes nothing out: who consumes gets all of it."),
    h("form.filter", { onsubmit: (event) => (event.preventDefault(), look.click()) }, h("div.grow", field("Which", mode)), controls, look),
    h("datalist", { id: "places" }, h("option", { value: "earliest" }), h("option", { value: "latest" })),
    list, none, h("div.buttons", next),
  );
  look.click();
}

// -- groups ----------------------------------------------------------------------------------------------------------

function groups(ctx) {
  const list = h("div");
  const none = empty(
    "No group consumes from it yet",
    "Each group gets every message once; its consumers share them. A group begins with its first consumer, over MQTT, AMQP, or by:",
    `curl ${BASE}/api/v1/queues/${path(ctx.queue)}/consume \\
  -H 'content-type: application/json' -d '{"group": "billing", "max_messages": 10, "wait_s": 5}'`,
  );
  const name = kept(`group ${ctx.queue}`, h("input", { type: "text", spellcheck: "false" }));
  const begin = act("Let a group begin…", "admin", () =>
    dialog("Let a group begin", [h("p", "From now on the queue keeps each message until this group has settled it."), field("Group", name)], {
      label: "Begin",
      ready: () => name.value.trim() !== "",
      async work() {
        await api.post(`${ctx.at}/groups`, { group: name.value.trim() });
        poller.now();
      },
    }),
  );
  ctx.add(h("div.buttons", begin), list, none);
  const poller = ctx.every(EVERY_MS, async (signal) => {
    const answer = await api.get(`${ctx.at}/groups`, signal);
    sync(list, answer.groups.slice(0, PAGE), (each) => each.group, (each) => group(ctx, each.group, () => poller.now()));
    show(none, answer.groups.length === 0);
  });
}

function group(ctx, name, again) {
  const at = `${ctx.at}/groups/${path(name)}`;
  const counts = tiles(["Lag", "Consumers", "In flight", "Waiting for a retry", "Assignments so far"]);
  const members = table(
    `Consumers of ${name}`,
    [
      ["Consumer", (each) => each.consumer],
      ["Partitions", (each) => each.partitions.join(", ") || "none"],
      ["In flight", (each) => number(each.in_flight), { num: true }],
      ["Settles by", (each) => each.ack_mode],
    ],
    (each) => each.consumer,
  );
  const places = table(
    `Partitions of ${name}`,
    [
      ["Partition", (each) => String(each.partition)],
      ["Who has it", (each) => (each.consumer === null ? "nobody" : `${each.consumer}${each.moving ? ", being handed over" : ""}`)],
      ["Settled below", (each) => number(each.committed), { num: true }],
      ["Next", (each) => number(each.cursor), { num: true }],
      ["End", (each) => number(each.end), { num: true }],
      ["Lag", (each) => number(each.lag), { num: true }],
      ["In flight", (each) => number(each.in_flight), { num: true }],
      ["Longest held", (each) => age(each.oldest_in_flight_s), { num: true }],
    ],
    (each) => each.partition,
  );
  const alone = h("p.muted", "Nobody consumes now. What is unsettled waits for who comes.");
  const to = kept(`reset ${ctx.queue} ${name}`, h("input", { type: "text", value: "earliest", spellcheck: "false" }));
  const buttons = h("div.buttons",
    act("Set back…", "admin", () =>
      dialog(`Let ${name} go on from another place`, [h("p", "What is in flight becomes stale: consumers that settle it are told so."), field("From", to, "earliest, latest, committed, an offset, or a time as 2030-01-31T12:00:00Z")], {
        label: "Set",
        async work() {
          await api.post(`${at}/reset`, { to: to.value.trim() });
          toast(`Group ${name} goes on from ${to.value.trim()}.`);
          again();
        },
      }),
    ),
    act("Delete…", "admin", () =>
      confirmByName(`Delete the group ${name}`, "What it has not settled is no longer kept for it. Its consumers must have left.", name, "Delete", async () => {
        await api.remove(at);
        again();
      }),
    ),
  );
  const pending = pendingOf(ctx, at, name);
  const node = h("section.card", h("header", h("h3", name), buttons), counts.node, members.node, alone, h("details", h("summary", "Where it stands, by partition"), places.node), pending.node);
  return {
    node,
    update(each) {
      const sum = (field) => each.partitions.reduce((total, place) => total + place[field], 0);
      counts.set([number(each.lag), number(each.members.length), number(sum("in_flight")), number(sum("waiting")), number(each.generation)]);
      members.set(each.members.slice(0, PAGE));
      places.set(each.partitions.slice(0, PAGE));
      show(members.node, each.members.length > 0);
      show(alone, each.members.length === 0);
      pending.count(sum("in_flight") + sum("waiting"));
    },
  };
}

/** Deliveries that a group has not settled; asked for while they are unfolded. */
function pendingOf(ctx, at, name) {
  const title = h("summary");
  const rows = table(
    `Unsettled deliveries of ${name}`,
    [
      ["Message", (each) => each.message_id],
      ["State", (each) => each.state],
      ["Consumer", (each) => each.consumer || "–"],
      ["Deliveries", (each) => number(each.delivery_count), { num: true }],
      ["Held for", (each) => age(each.idle_s), { num: true }],
      ["Due", (each) => moment(each.due_at)],
    ],
    (each) => each.message_id,
  );
  const next = h("button", { type: "button", hidden: true, onclick: () => ((after = following), poller?.now()) }, `Next ${PAGE}`);
  const first = h("button", { type: "button", hidden: true, onclick: () => ((after = ""), poller?.now()) }, "First page");
  const node = h("details", title, rows.node, h("div.buttons", first, next));
  let after = "";
  let following = "";
  let poller = null;
  node.addEventListener("toggle", () => {
    if (!node.open) {
      poller?.stop();
      poller = null;
      return;
    }
    poller ??= ctx.every(EVERY_MS, async (signal) => {
      const answer = await api.get(`${at}/pending${query({ after, limit: PAGE })}`, signal);
      following = answer.next ?? "";
      rows.set(answer.entries);
      show(next, following !== "");
      show(first, after !== "");
    });
  });
  return { node, count: (value) => put(title, `Pending: ${plural(value, "delivery", "deliveries")} not settled`) };
}

// -- dead letters, delayed messages ----------------------------------------------------------------------------------

function deadLetters(ctx) {
  const counts = tiles(["Dead letters now", "Ever", "The newest came"]);
  const list = h("div.messages.roving");
  const off = h("p.problem", { hidden: true }, "This queue keeps no dead letters (dead_letters: false): what fails for good is dropped.");
  const none = empty("No dead letters", "A message comes here when a consumer rejects it, or when it failed as often as retry.max_retries allows. Each keeps the reason in its headers, and can be sent back.");
  let came = null;
  const told = ({ replayed, skipped, failed }) =>
    toast(`${plural(replayed, "dead letter")} sent back${skipped ? `, ${number(skipped)} left with a consumer` : ""}${failed ? `, ${number(failed)} not taken by the queue` : ""}.`, failed ? "fail" : "pass");
  async function replay(wanted) {
    told(await api.post(`${ctx.at}/dlq/replay`, wanted));
    came = null;
    poller.now();
  }
  const buttons = h("div.buttons",
    act("Replay all…", "admin", () => dialog(`Replay the dead letters of ${ctx.queue}`, h("p", "All that there are now are sent back to the queue, as fresh messages."), { label: "Replay", work: () => replay({}) })),
    act("Purge…", "admin", () =>
      confirmByName(`Purge the dead letters of ${ctx.queue}`, "They are taken away for good.", ctx.queue, "Purge", async () => {
        const { purged } = await api.post(`${ctx.at}/dlq/purge`);
        toast(`${plural(purged, "dead letter")} purged.`);
        poller.now();
      }),
    ),
    h("a.button", { href: toQueue(`$dlq/${ctx.queue}`) }, "As a queue"),
  );
  ctx.add(off, counts.node, buttons, list, none);
  const poller = ctx.every(EVERY_MS, async (signal) => {
    const stats = await api.get(`${ctx.at}/dlq`, signal);
    counts.set([number(stats.current), number(stats.total), moment(stats.last_at)]);
    show(off, !stats.enabled);
    show(none, stats.current === 0 && stats.enabled);
    buttons.hidden = stats.total === 0;
    const now = `${stats.current} ${stats.total}`;
    if (now !== came) {
      const answer = stats.current ? await api.get(`queues/${path(`dlq/${ctx.queue}`)}/messages?limit=${PAGE}`, signal) : { messages: [] };
      came = now;
      sync(list, answer.messages, (each) => each.message_id, (each) => ({
        node: message(each, () => [act("Replay this one", "admin", () => replay({ message_id: each.message_id }))]),
      }));
    }
  });
}

function delayed(ctx) {
  const rows = table(
    "Messages that wait for their time",
    [
      ["Delay id", (each) => each.delay_id],
      ["Delivered at", (each) => moment(each.deliver_at)],
      ["In", (each) => (each.refused ? "due; the queue does not take it yet" : duration(Math.max(0, each.deliver_at - Date.now() / 1000)))],
      ["", (each, held) => held ?? act("Cancel", "write", async () => {
        await api.remove(`${ctx.at}/delayed/${path(each.delay_id)}`);
        toast("It is never delivered.");
        poller.now();
      })],
    ],
    (each) => each.delay_id,
  );
  const none = empty("Nothing waits for its time", "A message may be published now and delivered later, by a delay or a time:", `curl ${BASE}/api/v1/queues/${path(ctx.queue)}/messages \\
  -H 'content-type: application/json' -d '{"messages": [{"payload": "later", "delay": "10m"}]}'`);
  const next = h("button", { type: "button", hidden: true, onclick: () => ((after = last), poller.now()) }, `Next ${PAGE}`);
  const first = h("button", { type: "button", hidden: true, onclick: () => ((after = ""), poller.now()) }, "First page");
  let after = "";
  let last = "";
  ctx.add(rows.node, h("div.buttons", first, next), none);
  const poller = ctx.every(EVERY_MS, async (signal) => {
    const found = (await api.get(`${ctx.at}/delayed${query({ limit: PAGE, after })}`, signal)).messages;
    last = found.at(-1)?.delay_id ?? "";
    rows.set(found);
    show(rows.node, found.length > 0);
    show(none, found.length === 0 && after === "");
    show(next, found.length === PAGE);
    show(first, after !== "");
  });
}

// -- settings --------------------------------------------------------------------------------------------------------

function flat(config, before = "") {
  return Object.entries(config).flatMap(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value) ? flat(value, `${before}${name}.`) : [[before + name, value]],
  );
}

function settings(ctx) {
  const rows = table(
    "Settings",
    [
      ["Setting", (each) => each[0]],
      ["Value", (each) => (typeof each[1] === "string" ? each[1] : JSON.stringify(each[1]))],
      ["", (each) => (each[2] ? "set here" : "")],
    ],
    (each) => each[0],
  );
  const changes = kept(`settings ${ctx.queue}`, h("textarea", { rows: 5, spellcheck: "false", placeholder: '{"max_depth": 50000, "retry": {"max_retries": 5}}' }));
  const count = h("input", { type: "number", min: 1 });
  const change = act("Change", "admin", async () => {
    filled(await api.patch(ctx.at, parsed(changes.value, "Changes")));
    toast("It is as you say from now on.");
  }, ".primary");
  const grow = act("Add partitions", "admin", async () => {
    await api.put(`${ctx.at}/partitions`, { count: Number(count.value) });
    toast(`There are ${plural(Number(count.value), "partition")} now.`);
    poller.now();
  });
  function filled({ config, settings: own }) {
    const set = new Set(flat(own).map(([name]) => name));
    rows.set(flat(config).map(([name, value]) => [name, value, set.has(name)]));
    if (!count.value) {
      count.value = config.partitions;
    }
  }
  ctx.add(
    h("div.halves",
      h("section.card", h("h3", "Change settings in use"), field("Changes", changes, "JSON; null takes back what was set here, so that the configuration file holds again."), h("div.buttons", change)),
      h("section.card", h("h3", "Partitions"), field("In all", count, "More of them serve more consumers; there are never fewer. Keys move to other partitions."), h("div.buttons", grow)),
    ),
    rows.node,
  );
  const poller = ctx.every(10_000, async (signal) => filled(await api.get(ctx.at, signal)));
}

