// Traces: what became of single messages, as a waterfall of what happened to each.
import { api, path, query } from "./api.js";
import { duration, empty, field, h, number, plural, put, select, show, svg, table } from "./dom.js";

const PAGE = 100;
const EVERY_MS = 4000;
const TONES = { completed: "c3", failed: "c2", expired: "c2", retrying: "c4" };
const STATES = ["", "in_progress", "completed", "failed", "retrying", "delayed", "expired"].map((each) => [each, each.replace("_", " ") || "all"]);
const milliseconds = (value) => duration(value / 1000);
const messageOf = (each) => (each.offset < 0 ? each.topic : `${each.topic} ${each.partition}:${each.offset}`);

export function traces(ctx) {
  if (ctx.params.length) {
    trace(ctx, ctx.params[0]);
    return;
  }
  ctx.title("Traces");
  const topic = h("input", { type: "search", value: ctx.query.get("topic") ?? "", autocomplete: "off", spellcheck: "false", placeholder: "Of the queue …", "aria-label": "Of the queue" });
  const state = select(STATES, { value: ctx.query.get("status") ?? "" });
  ctx.search = topic;
  const rows = table(
    "Traces, the newest first",
    [
      ["Trace", (each, held) => held ?? h("a", { href: `#/traces/${path(each.trace_id)}` }, each.trace_id)],
      ["Message", messageOf],
      ["Began", (each) => new Date(each.start_time).toLocaleTimeString()],
      ["Took", (each) => milliseconds(each.duration_ms), { num: true }],
      ["Came to", (each) => each.status.replace("_", " ")],
      ["Steps", (each) => number(each.spans.length), { num: true }],
    ],
    (each) => each.trace_id,
    { open: (each) => (location.hash = `#/traces/${path(each.trace_id)}`) },
  );
  const off = empty("Tracing is off", "A trace shows what became of one message: published, appended, synced, delivered, settled. The broker keeps some in memory once it is configured to:", "tracing:\n  enabled: true\n  ratio: 0.01");
  const none = h("p.empty", { hidden: true }, "No trace of the kind that you ask for. Only a share of all messages is traced (tracing.ratio).");
  const filter = h("form.filter", { role: "search", onsubmit: (event) => event.preventDefault() }, h("div.grow", topic), field("Came to", state));
  ctx.add(filter, rows.node, off, none);
  [filter, rows.node, off].forEach((node) => show(node, false));
  const poller = ctx.every(EVERY_MS, async (signal) => {
    let found = null;
    try {
      found = (await api.get(`traces/search${query({ topic: topic.value, status: state.value, limit: PAGE })}`, signal)).traces;
    } catch (error) {
      if (error.code !== "unsupported") {
        throw error;
      }
    }
    show(off, found === null);
    show(filter, found !== null);
    rows.set(found ?? []);
    show(rows.node, Boolean(found?.length));
    show(none, found?.length === 0);
  });
  const look = () => {
    ctx.note({ topic: topic.value, status: state.value });
    poller.now();
  };
  topic.addEventListener("change", look);
  state.addEventListener("change", look);
}

function trace(ctx, id) {
  ctx.title(`Trace ${id.slice(0, 16)}`);
  ctx.body.prepend(h("p.crumbs", h("a", { href: "#/traces" }, "Traces"), " / "));
  const about = h("p.lead");
  const list = h("ol.waterfall", { "aria-label": "What happened, in order" });
  ctx.add(about, list);
  let drawn = 0;
  ctx.every(EVERY_MS, async (signal) => {
    const each = await api.get(`traces/${path(id)}`, signal);
    put(about, `${messageOf(each)}: ${each.status.replace("_", " ")}, ${milliseconds(each.duration_ms)}, ${plural(each.spans.length, "step")}`);
    if (drawn !== each.spans.length) {
      drawn = each.spans.length;
      list.replaceChildren(...waterfall(each));
    }
  });
}

/** A span ended at its time, and took so long since what it waited for. */
function waterfall({ spans, status }) {
  const timed = spans.map((span) => {
    const end = Date.parse(span.timestamp);
    return { ...span, begin: end - span.duration_ms, end };
  });
  const begin = Math.min(...timed.map((span) => span.begin));
  const whole = Math.max(...timed.map((span) => span.end)) - begin || 1;
  return timed
    .slice(0, 2 * PAGE) // in the order in which they ended
    .map((span) => {
      const x = Math.min(((span.begin - begin) / whole) * 1000, 994);
      const width = Math.max(6, Math.min((span.duration_ms / whole) * 1000, 1000 - x));
      const bar = svg("rect", { x, y: 3, width, height: 12, rx: 3, class: TONES[status] ?? "c1" });
      const about = [span.consumer_group, span.client_id, span.delivery_count > 1 && `delivery ${span.delivery_count}`, span.details].filter(Boolean).join(", ");
      return h(
        "li",
        h("span", span.event_type, about && h("small", about)),
        svg("svg", { viewBox: "0 0 1000 18", preserveAspectRatio: "none", "aria-hidden": "true" }, bar),
        h("span.num", `+${milliseconds(span.begin - begin)}, ${milliseconds(span.duration_ms)}`),
      );
    });
}
