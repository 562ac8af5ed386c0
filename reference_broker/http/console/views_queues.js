// Queues: figures of those in view, and how one is made.
import { api, path, query } from "./api.js";
import { latest, remember, spark } from "./charts.js";
import { empty, field, h, kept, number, plural, put, rate, show, table } from "./dom.js";
import { act, dialog, parsed, toast } from "./ui.js";

const PAGE = 100;
const EVERY_MS = 2000;

/** Counters of a queue that become rates. */
export function flows(stats) {
  const sum = (name) => stats.groups.reduce((total, group) => total + group[name], 0);
  return { taken: stats.enqueued, delivered: sum("delivered"), settled: sum("acked") };
}

export const lag = (stats) => Math.max(0, ...stats.groups.map((group) => group.lag));
export const followed = (stats) =>
  remember(`queue ${stats.queue}`, { depth: stats.depth, ready: stats.ready, in_flight: stats.in_flight, lag: lag(stats) }, flows(stats));
export const toQueue = (name, tab = "") => `#/queues/${path(name)}${tab ? `/${tab}` : ""}`;
/** The topic of GoQueue's names that a queue is. */
export const topicOf = (name) => (name.startsWith("$dlq/") ? `${name.slice(5)}.dlq` : name);

/** The address of this broker as a shell knows it. */
export const BASE = new URL("../", document.baseURI).href.replace(/\/$/, "");

export const publishCommand = (name) => `curl ${BASE}/api/v1/queues/${path(name)}/messages \\
  -H 'content-type: application/json' -d '{"messages": [{"payload": "hello"}]}'`;

function figureWithLine(name, format, tone) {
  return (stats, held) => {
    let drawn = held?.drawn;
    if (!drawn) {
      const text = h("span");
      const line = spark(tone);
      drawn = { text, line, node: h("span.with-line", text, line.node) };
      drawn.node.drawn = drawn;
    }
    const points = followed(stats);
    put(drawn.text, format(latest(points, name)));
    drawn.line.set(points, name);
    return drawn.node;
  };
}

export function createQueue(done) {
  const name = kept("create.name", h("input", { type: "text", autocomplete: "off", spellcheck: "false", autofocus: true }));
  const partitions = kept("create.partitions", h("input", { type: "number", min: 1, max: 10_000, placeholder: "as configured" }));
  const topics = kept("create.topics", h("input", { type: "text", spellcheck: "false", placeholder: "shop/orders/#, shop/returns" }));
  const more = kept("create.more", h("textarea", { rows: 4, spellcheck: "false", placeholder: '{"durability": "fsync", "max_depth": 50000}' }));
  dialog(
    "Create a queue",
    [
      field("Name", name),
      field("Partitions", partitions, "Messages with one key stay in order; more partitions serve more consumers."),
      field("Topics that it gets, too", topics, "Filters of MQTT, with commas between."),
      field("Further settings", more, "JSON, with the keys of queues.configured in the configuration file."),
    ],
    {
      label: "Create",
      ready: () => name.value.trim() !== "",
      async work() {
        const settings = more.value.trim() ? parsed(more.value, "Further settings") : {};
        if (partitions.value) {
          settings.partitions = Number(partitions.value);
        }
        const filters = topics.value.split(",").map((each) => each.trim()).filter((each) => each);
        if (filters.length) {
          settings.topics = filters;
        }
        const made = await api.post("queues", { name: name.value.trim(), settings });
        toast(`Queue ${made.config.name} is there, with ${plural(made.config.partitions, "partition")}.`);
        [name, partitions, topics, more].forEach((control) => {
          control.value = "";
          control.dispatchEvent(new Event("change"));
        });
        done(made.config.name);
      },
    },
  );
}

export function queues(ctx) {
  ctx.title("Queues", act("Create a queue", "admin", () => createQueue((name) => (location.hash = toQueue(name))), ".primary"));
  const search = h("input", { type: "search", value: ctx.query.get("prefix") ?? "", autocomplete: "off", spellcheck: "false", placeholder: "Names that begin with …", "aria-label": "Names that begin with" });
  const letters = h("input", { type: "checkbox", checked: ctx.query.get("dead") === "1" });
  ctx.search = search;
  ctx.focus = ctx.query.get("search") ? search : undefined;
  const found = h("output");
  const rows = table(
    "Queues with their figures, which change as you look",
    [
      ["Queue", (each, held) => {
        const node = held ?? h("span.name", h("a", { href: toQueue(each.queue) }, each.queue), h("span.chip.severity-safety", { hidden: true }, "failed"));
        show(node.lastChild, each.failed);
        return node;
      }],
      ["Depth", figureWithLine("depth", number, "c1"), { num: true }],
      ["In", figureWithLine("taken", rate, "c3"), { num: true }],
      ["Out", figureWithLine("delivered", rate, "c2"), { num: true }],
      ["Lag", (each) => number(lag(each)), { num: true }],
      ["In flight", (each) => number(each.in_flight), { num: true }],
      ["Consumers", (each) => number(each.consumers), { num: true }],
      ["Delayed", (each) => number(each.delayed), { num: true }],
      ["Dead letters", (each, held) => {
        const node = held ?? h("span");
        put(node, number(each.dead_letters));
        node.className = each.dead_letters ? "tone-fail loud" : "";
        return node;
      }, { num: true }],
    ],
    (each) => each.queue,
    { open: (each) => (location.hash = toQueue(each.queue)) },
  );
  const next = h("button", { type: "button", onclick: () => turn(token) }, "Next 100");
  const first = h("button", { type: "button", onclick: () => turn("") }, "First page");
  const none = empty(
    "No queues yet",
    "A queue keeps each message until every group of consumers has settled it. One is made here, by a client that publishes to $queue/<name> over MQTT, or by:",
    `curl ${BASE}/api/v1/queues -H 'content-type: application/json' -d '{"name": "orders"}'`,
  );
  const nothing = h("div.empty", { hidden: true }, h("h3", "No queue has such a name"), h("p", "Names are compared from their first letter on, and a capital is another letter."));
  const unusable = h("p.problem", { hidden: true });
  ctx.add(
    h("form.filter", { role: "search", onsubmit: (event) => event.preventDefault() }, h("div.grow", search), field("Dead-letter queues, too", letters), found),
    unusable, rows.node, h("div.buttons", first, next), none, nothing,
  );
  let token = "";

  const poller = ctx.every(EVERY_MS, async (signal) => {
    const after = ctx.query.get("after") ?? "";
    const asked = { prefix: search.value, page_token: after, limit: PAGE, dead_letters: letters.checked };
    const answer = await api.get(`stats/queues${query(asked)}`, signal);
    token = answer.next_page_token;
    answer.queues.forEach(followed);
    rows.set(answer.queues);
    const any = answer.queues.length > 0;
    show(rows.node, any);
    show(none, !any && !search.value && !after);
    show(nothing, !any && Boolean(search.value || after));
    show(next, token !== "");
    show(first, after !== "");
    put(found, any ? plural(answer.queues.length, "queue") + (token ? " on this page" : "") : "");
    put(unusable, `Not opened, since something of them is damaged: ${answer.unusable.join(", ")}. The log of the broker says what; assay storage verify looks closer.`);
    show(unusable, answer.unusable.length > 0);
  });
  function turn(after) {
    ctx.note({ after });
    poller.now();
  }
  let typed;
  search.addEventListener("input", () => {
    window.clearTimeout(typed);
    typed = window.setTimeout(() => {
      ctx.note({ prefix: search.value, after: "" });
      poller.now();
    }, 150);
  });
  letters.addEventListener("change", () => {
    ctx.note({ dead: letters.checked ? "1" : "", after: "" });
    poller.now();
  });
}

