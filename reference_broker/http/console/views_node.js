// The broker as a whole, sessions, topics of MQTT, tenants.
import { api, path, query } from "./api.js";
import { chart, rates, remember } from "./charts.js";
import { bytes, duration, empty, field, h, moment, number, plural, put, select, show, sync, table } from "./dom.js";
import { act, isLeft, toast } from "./ui.js";
import { BASE, followed, toQueue } from "./views_queues.js";

const EVERY_MS = 2000;
const PAGE = 100;

// -- overview --------------------------------------------------------------------------------------------------------

function tile(name, href) {
  const value = h("dd", "–");
  return { node: h("div", h("dt", href ? h("a", { href }, name) : name), value), set: (text) => put(value, text) };
}

export function overview(ctx) {
  const about = h("p.muted");
  ctx.title("Overview", act("Read the configuration again", "admin", async () => {
    const { needs_restart: rest } = await api.post("reload");
    toast(rest.length ? `Users, tokens, rules and tenants hold anew. A restart is needed for: ${rest.join(", ")}.` : "Users, tokens, rules and tenants hold anew.");
  }));
  const names = {
    depth: tile("Messages in queues", "#/queues"),
    queues: tile("Queues", "#/queues"),
    in_flight: tile("In flight"),
    delayed: tile("Delayed"),
    dead: tile("Dead letters"),
    connections: tile("Connections", "#/sessions"),
    sessions: tile("Sessions", "#/sessions"),
    subscriptions: tile("Subscriptions", "#/topics"),
    retained: tile("Retained messages"),
    uptime: tile("Up for"),
  };
  const charts = {
    queues: rates("Queues: messages per second", [["taken", "in"], ["delivered", "delivered"], ["settled", "settled"]]),
    waiting: chart("Queues: messages that wait", [["depth", "depth"], ["in_flight", "in flight"]]),
    topics: rates("MQTT: messages per second", [["received", "from clients"], ["sent", "to clients"]]),
    bytes: chart("Clients: bytes per second", [["bytes_in", "from"], ["bytes_out", "to"]], (value) => `${bytes(value)}/s`),
  };
  const attention = h("ul.attention");
  const calm = h("p.muted", "Nothing needs you now.");
  const nodes = h("div");
  const first = empty(
    "This broker is new",
    "Make a queue, publish to it, and watch what becomes of the message:",
    `curl ${BASE}/api/v1/queues -H 'content-type: application/json' -d '{"name": "orders"}'
curl ${BASE}/api/v1/queues/orders/messages -H 'content-type: application/json' \\
  -d '{"messages": [{"payload": "first"}]}'`,
  );
  ctx.add(
    about,
    first,
    h("dl.tiles.wide", Object.values(names).map((each) => each.node)),
    h("section", h("h2", "What needs you"), attention, calm),
    h("div.charts", Object.values(charts).map((each) => each.node)),
    h("section", h("h2", "Nodes"), nodes),
  );
  ctx.every(EVERY_MS, async (signal) => {
    const { node, version, stats, cluster } = await api.get("overview", signal);
    const q = stats.queues;
    put(about, `Node ${node}, Assay ${version}`);
    names.depth.set(number(q.depth));
    names.queues.set(number(q.queues));
    names.in_flight.set(number(q.in_flight));
    names.delayed.set(number(q.delayed));
    names.dead.set(number(q.dead_letters));
    names.connections.set(number(stats.connections.current));
    names.sessions.set(number(stats.sessions));
    names.subscriptions.set(number(stats.subscriptions));
    names.retained.set(number(stats.retained_messages));
    names.uptime.set(duration(stats.uptime_seconds));
    show(first, q.queues === 0);
    const points = remember(
      "broker",
      { depth: q.depth, in_flight: q.in_flight },
      {
        taken: q.enqueued, delivered: q.delivered, settled: q.acked,
        received: stats.messages.received, sent: stats.messages.sent,
        bytes_in: stats.bytes.received, bytes_out: stats.bytes.sent,
      },
    );
    Object.values(charts).forEach((each) => each.set(points));
    drawNodes(nodes, cluster);
  });
  ctx.every(5 * EVERY_MS, async (signal) => {
    const found = await api.get(`stats/queues?limit=${PAGE}`, signal);
    found.queues.forEach(followed);
    const wants = [
      ...found.unusable.map((name) => ({ key: `unusable ${name}`, name, tone: "fail", text: "is not opened, since something of it is damaged; the log says what" })),
      ...found.queues.filter((each) => each.failed).map((each) => ({ key: `failed ${each.queue}`, name: each.queue, href: toQueue(each.queue), tone: "fail", text: "refuses work, since a write failed for good; restart the broker" })),
      ...found.queues.filter((each) => each.dead_letters).map((each) => ({ key: `dead ${each.queue}`, name: each.queue, href: toQueue(each.queue, "dead-letters"), tone: "non-strict", text: `has ${plural(each.dead_letters, "dead letter")}` })),
      ...found.queues.filter((each) => each.ready && !each.consumers && each.groups.length).map((each) => ({ key: `idle ${each.queue}`, name: each.queue, href: toQueue(each.queue, "groups"), tone: "unknown", text: `holds ${plural(each.ready, "message")}, and nobody consumes` })),
    ].slice(0, 20);
    sync(attention, wants, (each) => each.key, (each) => {
      const text = h("span");
      return {
        node: h(`li.tone-${each.tone}`, each.href ? h("a", { href: each.href }, each.name) : h("strong", each.name), " ", text),
        update: (next) => put(text, next.text),
      };
    });
    show(calm, wants.length === 0);
  });
}

function drawNodes(place, cluster) {
  if (!cluster.cluster_mode) {
    sync(place, [cluster], () => "one", () => ({ node: h("p.muted", `One node: ${cluster.node_id}. It is alone, so there is no map to draw.`) }));
    return;
  }
  sync(place, [cluster], () => "map", () => {
    const list = h("ul.nodes");
    return {
      node: list,
      update: ({ nodes }) =>
        sync(list, nodes, (each) => each.id, (each) => {
          const text = h("span");
          const node = h("li", h("strong", each.id), text);
          return {
            node,
            update(now) {
              node.className = now.healthy ? "tone-pass" : "tone-fail";
              put(text, `${now.healthy ? "well" : "not reached"}${now.leader ? ", leads" : ""}; up for ${duration(now.uptime_seconds)}`);
            },
          };
        }),
    };
  });
}

// -- sessions --------------------------------------------------------------------------------------------------------

/** A search by first letters and pages, for lists that the broker tells by name. */
function pages(ctx, label, refresh, ...more) {
  const search = h("input", { type: "search", value: ctx.query.get("prefix") ?? "", autocomplete: "off", spellcheck: "false", placeholder: label, "aria-label": label });
  const found = h("output");
  const next = h("button", { type: "button", hidden: true, onclick: () => turn(token) }, `Next ${PAGE}`);
  const first = h("button", { type: "button", hidden: true, onclick: () => turn("") }, "First page");
  let token = "";
  let typed;
  function turn(after, prefix = search.value) {
    ctx.note({ after, prefix });
    refresh();
  }
  search.addEventListener("input", () => {
    window.clearTimeout(typed);
    typed = window.setTimeout(() => turn(""), 150);
  });
  ctx.search = search;
  return {
    filter: h("form.filter", { role: "search", onsubmit: (event) => event.preventDefault() }, h("div.grow", search), more, found),
    buttons: h("div.buttons", first, next),
    asked: () => ({ prefix: search.value, page_token: ctx.query.get("after") ?? "", limit: PAGE }),
    told(answer, count, what) {
      token = answer.next_page_token;
      show(next, token !== "");
      show(first, Boolean(ctx.query.get("after")));
      put(found, count ? plural(count, what) + (token ? " on this page" : "") : "");
    },
    turn,
    get narrowed() {
      return Boolean(search.value || ctx.query.get("after"));
    },
  };
}

const toSession = (id) => `#/sessions/${path(id)}`;
const NONE = "Nothing has such a name";

export function sessions(ctx) {
  if (ctx.params.length) {
    session(ctx, ctx.params[0]);
    return;
  }
  ctx.title("Sessions of MQTT");
  const state = select([["", "All"], ["connected", "Connected"], ["disconnected", "Away"]], { value: ctx.query.get("state") ?? "" });
  const list = pages(ctx, "Client ids that begin with …", () => poller.now(), field("State", state));
  state.addEventListener("change", () => {
    ctx.note({ state: state.value });
    list.turn("");
  });
  const rows = table(
    "Sessions",
    [
      ["Client", (each, held) => held ?? h("a", { href: toSession(each.client_id) }, each.client_id)],
      ["State", (each) => (each.connected ? "connected" : `away since ${moment(each.disconnected_at)}`)],
      ["User", (each) => each.username ?? "–"],
      ["Subscriptions", (each) => number(each.subscription_count), { num: true }],
      ["In flight", (each) => number(each.inflight_count), { num: true }],
      ["Kept for it", (each) => number(each.offline_queue_depth), { num: true }],
      ["Dropped", (each) => number(each.dropped), { num: true }],
    ],
    (each) => each.client_id,
    { open: (each) => (location.hash = toSession(each.client_id)) },
  );
  const none = empty("No sessions", "A session begins when a client of MQTT connects, and outlives its connection as long as it asked for:", `mosquitto_sub -h ${location.hostname} -t 'sensors/#' -q 1 -i dashboard -c`);
  const nothing = h("p.empty", { hidden: true }, NONE);
  ctx.add(list.filter, rows.node, list.buttons, none, nothing);
  const poller = ctx.every(EVERY_MS, async (signal) => {
    const answer = await api.get(`sessions${query({ ...list.asked(), state: state.value })}`, signal);
    const any = answer.sessions.length > 0;
    rows.set(answer.sessions);
    list.told(answer, answer.sessions.length, "session");
    show(rows.node, any);
    show(none, !any && !list.narrowed && !state.value);
    show(nothing, !any && Boolean(list.narrowed || state.value));
  });
}

function session(ctx, id) {
  ctx.title(id);
  ctx.body.prepend(h("p.crumbs", h("a", { href: "#/sessions" }, "Sessions"), " / "));
  const facts = h("dl.tiles.wide");
  const rows = table(
    "Subscriptions",
    [
      ["Filter", (each) => each.filter],
      ["QoS", (each) => String(each.qos), { num: true }],
      ["Group", (each) => each.consumer_group || "–"],
      ["Options", (each) => [each.no_local && "no local", each.retain_as_published && "retain as published", each.subscription_id && `identifier ${each.subscription_id}`].filter(Boolean).join(", ") || "–"],
    ],
    (each) => each.filter,
  );
  const cut = h("p.muted", { hidden: true });
  ctx.add(facts, h("section", h("h2", "Subscriptions"), rows.node, cut));
  ctx.every(EVERY_MS, async (signal) => {
    const each = await api.get(`sessions/${path(id)}`, signal);
    const told = [
      ["State", each.connected ? "connected" : "away"],
      ["User", each.username ?? "–"],
      ["Tenant", each.tenant ?? "–"],
      ["Outlives its connection", each.expiry_interval === null ? "for ever" : duration(each.expiry_interval)],
      ["In flight", number(each.inflight_count)],
      ["Kept for it", number(each.offline_queue_depth)],
      ["Dropped", number(each.dropped)],
      ["Will", each.has_will ? "yes" : "no"],
    ];
    sync(facts, told, ([name]) => name, ([name]) => {
      const value = h("dd");
      return { node: h("div", h("dt", name), value), update: ([, text]) => put(value, text) };
    });
    rows.set(each.subscriptions.slice(0, 5 * PAGE));
    put(cut, `And ${number(each.subscriptions.length - 5 * PAGE)} more.`);
    show(cut, each.subscriptions.length > 5 * PAGE);
  });
}

// -- topics ----------------------------------------------------------------------------------------------------------

export function topics(ctx) {
  ctx.title("Topics of MQTT", h("div.buttons", h("a.button", { href: "#/live?kind=topic" }, "Publish or watch")));
  const list = pages(ctx, "Filters that begin with …", () => poller.now());
  const rows = table(
    "Filters that clients have subscribed to",
    [
      ["Filter", (each) => each.filter],
      ["Clients", (each) => number(each.subscriber_count), { num: true }],
      ["Highest QoS", (each) => String(each.max_qos), { num: true }],
      ["", (each, held) => held ?? who(each.filter)],
    ],
    (each) => each.filter,
  );
  function who(filter) {
    const box = h("details", h("summary", "Who"));
    box.addEventListener("toggle", async () => {
      if (!box.open) {
        return;
      }
      try {
        const { clients } = await api.get(`subscriptions/${path(filter)}/clients?limit=${PAGE}`, ctx.signal);
        box.replaceChildren(box.firstChild, h("ul", clients.map((each) => h("li", h("a", { href: toSession(each.client_id) }, each.client_id), ` (QoS ${each.qos})`))));
      } catch (error) {
        if (!isLeft(error)) {
          toast(error.message, "fail");
        }
      }
    });
    return box;
  }
  const none = empty("Nobody has subscribed", "Topics exist as long as somebody listens; a queue may listen as well (topics in its settings).", `mosquitto_sub -h ${location.hostname} -t 'sensors/#' -v`);
  const nothing = h("p.empty", { hidden: true }, NONE);
  ctx.add(list.filter, rows.node, list.buttons, none, nothing);
  const poller = ctx.every(2 * EVERY_MS, async (signal) => {
    const answer = await api.get(`subscriptions${query(list.asked())}`, signal);
    const any = answer.subscriptions.length > 0;
    rows.set(answer.subscriptions);
    list.told(answer, answer.subscriptions.length, "filter");
    show(rows.node, any);
    show(none, !any && !list.narrowed);
    show(nothing, !any && list.narrowed);
  });
}

// -- tenants ---------------------------------------------------------------------------------------------------------

const METERS = [
  ["Queues", "max_queues", (usage) => usage.queues, number],
  ["Partitions", "max_partitions", (usage) => usage.partitions, number],
  ["Groups", "max_groups", (usage) => usage.groups, number],
  ["Stored", "max_storage_bytes", (usage) => usage.stored_bytes, bytes],
  ["Connections", "max_connections", (_, tenant) => tenant.connections, number],
];
const LIMITS = { publish_messages_per_s: "published/s", publish_bytes_per_s: "bytes published/s", consume_messages_per_s: "delivered/s", consume_bytes_per_s: "bytes delivered/s", max_message_bytes: "bytes a message", max_delay_hours: "hours of delay", max_partitions_per_queue: "partitions a queue", max_consumers_per_group: "consumers a group" };

export function tenants(ctx) {
  ctx.title("Tenants");
  const list = h("div.cards");
  const none = empty("No tenants", "A tenant has queues of its own under names that it chooses, and quotas. They are configured, and hold once the configuration is read again:", "queues:\n  tenants:\n    - {name: acme, users: [tom], quotas: {max_queues: 10, publish_messages_per_s: 100}}");
  const cut = h("p.muted", { hidden: true });
  ctx.add(list, cut, none);
  ctx.every(2 * EVERY_MS, async (signal) => {
    const found = (await api.get("tenants", signal)).tenants;
    sync(list, found.slice(0, PAGE), (each) => each.name, tenant);
    show(none, found.length === 0);
    put(cut, `And ${number(found.length - PAGE)} more.`);
    show(cut, found.length > PAGE);
  });
}

function tenant(each) {
  const who = h("p.muted");
  const limits = h("p.muted");
  const meters = METERS.map(([name]) => {
    const text = h("dd");
    const bar = h("meter", { min: 0, "aria-hidden": "true" });
    return { node: h("div", h("dt", name), text, bar), text, bar };
  });
  return {
    node: h("section.card", h("header", h("h3", each.name)), who, h("dl.meters", meters.map((meter) => meter.node)), limits),
    update(now) {
      put(who, `Users: ${now.users.join(", ") || "none"}${now.clients.length ? `; clients: ${now.clients.join(", ")}` : ""}`);
      METERS.forEach(([, quota, used, format], index) => {
        const most = now.quotas[quota];
        const has = used(now.usage, now);
        const { text, bar } = meters[index];
        put(text, most ? `${format(has)} of ${format(most)}` : `${format(has)}, no limit`);
        show(bar, most > 0);
        if (most) {
          Object.assign(bar, { max: most, high: most * 0.8, optimum: 0, value: has });
        }
      });
      const said = Object.entries(LIMITS).filter(([name]) => now.quotas[name]).map(([name, label]) => `${number(now.quotas[name])} ${label}`);
      put(limits, said.length ? `At most ${said.join(", ")}` : "No further limits");
    },
  };
}
