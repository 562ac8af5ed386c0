// Traces: what became of single messages, as a waterfall of what happened to each.
import { api, path, query } from "./api.js";
import { duration, empty, field, h, number, plural, put, select, show, svg, table } from "./dom.js";

const PAGE = 100;
const EVERY_MS = 4000;
const TONES = { completed: "c3", failed: "c2", expired: "c2", retrying: "c4" };
const STATES = ["", "in_progress", "completed", "failed", "retrying", "delayed", "expired"].map((each) => [each, each.replace("_", " ") || "all"]);
const milliseconds = (value) => duration(value / 1000);
const at = (text) => new Date(text).getTime();

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
      ["Message", (each) => `${each.topic} ${each.partition}:${each.offset}`],
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
      if (error.status !== 404 && error.status !== 501) {
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
    put(about, `${each.topic} ${each.partition}:${each.offset}: ${each.status.replace("_", " ")}, ${milliseconds(each.duration_ms)}, ${plural(each.spans.length, "step")}`);
    if (drawn !== each.spans.length) {
      drawn = each.spans.length;
      list.replaceChildren(...waterfall(each));
    }
  });
}

function waterfall({ spans, status }) {
  // A span ended at its time.
  const began = (span) => at(span.timestamp) - span.duration_ms;
  const begins = Math.min(...spans.map(began));
  const ends = Math.max(...spans.map((span) => at(span.timestamp)), begins + 1);
  return spans.slice(0, 2 * PAGE).map((span) => {
    const from = ((began(span) - begins) / (ends - begins)) * 1000;
    const width = Math.max(6, (span.duration_ms / (ends - begins)) * 1000);
    const bar = svg("rect", { x: Math.min(from, 994), y: 3, width: Math.min(width, 1000 - Math.min(from, 994)), height: 12, rx: 3, class: TONES[status] ?? "c1" });
    return h("li", h("span", span.event_type), svg("svg", { viewBox: "0 0 1000 18", preserveAspectRatio: "none", "aria-hidden": "true" }, bar), h("span.num", `+${milliseconds(at(span.timestamp) - begins)}`));
  });
}
