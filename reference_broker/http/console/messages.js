// Messages as they are looked at: text, JSON, or bytes, whatever they hold.
import { code, duration, h, moment, number, plural } from "./dom.js";

const SHOWN = 20_000;
const PREVIEW = 140;

function bytesOf(message) {
  return Uint8Array.from(atob(message.payload_base64), (letter) => letter.charCodeAt(0));
}

function dump(content) {
  const lines = [];
  for (let at = 0; at < Math.min(content.length, 1024); at += 16) {
    const row = [...content.slice(at, at + 16)];
    const hex = row.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const text = row.map((each) => (each > 31 && each < 127 ? String.fromCharCode(each) : "·")).join("");
    lines.push(`${at.toString(16).padStart(4, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

function pretty(text) {
  if (!/^\s*[[{]/.test(text) || text.length > SHOWN) {
    return null;
  }
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

function payload(message) {
  if (message.payload_base64 !== undefined) {
    const content = bytesOf(message);
    return [h("p.muted", `${plural(content.length, "byte")} that are no text${content.length > 1024 ? ", the first 1024" : ""}`), code(dump(content))];
  }
  const text = message.payload ?? "";
  const indented = pretty(text);
  if (indented !== null && indented !== text) {
    return [code(indented)];
  }
  if (text.length <= SHOWN) {
    return [text ? code(text) : h("p.muted", "Its payload is empty.")];
  }
  const box = h("div", code(text.slice(0, SHOWN)));
  const all = h("button", { type: "button", onclick: () => box.replaceChildren(code(text)) }, `Show all ${number(text.length)} characters`);
  box.append(all);
  return [box];
}

const NAMES = ["critical", "high", "normal", "low", "background"];

/** One message, folded; what it holds is made when it is opened. `actions(message)` gives buttons. */
export function message(each, actions = () => []) {
  const text = each.payload_base64 === undefined ? (each.payload ?? "") : `${plural(Math.floor((each.payload_base64.length * 3) / 4), "byte")}, no text`;
  const facts = [
    ["Message", each.message_id ?? ""],
    ["Topic", each.topic],
    ["Key", each.key],
    ["Routing key", each.routing_key],
    ["Content type", each.content_type],
    ["Priority", each.priority === undefined || each.priority === 2 ? "" : (NAMES[each.priority] ?? each.priority)],
    ["Published", each.enqueued_at ? moment(each.enqueued_at) : ""],
    ["Delivery", each.delivery_count > 1 ? `${each.delivery_count}th` : ""],
    ...Object.entries(each.headers ?? {}).map(([name, value]) => [name, value, true]),
  ].filter(([, value]) => value);
  const failed = each.headers?._dlq_reason;
  const place = each.offset === undefined ? (each.topic ?? "") : `${each.partition}:${each.offset}`;
  const summary = h("summary", h("code.place", place), h("span.preview", text.slice(0, PREVIEW) || "(empty)"), failed && h("span.chip.severity-safety", failed.slice(0, 40)), each.enqueued_at ? h("span.when.muted", moment(each.enqueued_at)) : "");
  const node = h("details.message", summary);
  node.addEventListener(
    "toggle",
    () => {
      node.append(
        h("div.opened", payload(each), h("dl.facts", facts.map(([name, value, own]) => h("div", h("dt", own ? h("code", name) : name), h("dd", String(value))))), h("div.buttons", actions(each))),
      );
    },
    { once: true },
  );
  return node;
}

export const age = (seconds) => (seconds ? duration(seconds) : "–");
