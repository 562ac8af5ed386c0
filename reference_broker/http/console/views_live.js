// Publishes, and shows messages as they come: of queues, without taking any or as a consumer, and of topics.
import { api, path, query } from "./api.js";
import { field, h, kept, number, plural, put, select, show } from "./dom.js";
import { message } from "./messages.js";
import { act, inWords, Mistake, toast } from "./ui.js";
import { topicOf } from "./views_queues.js";

const SHOWN = 200;
const MAX_PARTITIONS = 16;
const EVERY_MS = 1000;
const PRIORITIES = [["", "normal"], "critical", "high", "low", "background"];

export function live(ctx) {
  ctx.title("Live");
  const name = ctx.query.get("queue");
  ctx.add(h("div.halves.live", publisher(ctx, name), listener(ctx, name)));
}

const text = (id, props = {}) => kept(id, h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...props }));

/** Only one of a number of controls is of use at a time. */
function shownBy(choice, parts) {
  const look = () => Object.entries(parts).forEach(([value, nodes]) => nodes.forEach((node) => show(node, value.split(" ").includes(choice.value))));
  choice.addEventListener("change", look);
  look();
}

// -- publishing ------------------------------------------------------------------------------------------------------

function publisher(ctx, given) {
  const kind = kept("publish.kind", select([["queue", "A queue"], ["topic", "A topic of MQTT"]]));
  const queue = text("publish.queue", { list: "queues", placeholder: "orders" });
  const topic = text("publish.topic", { placeholder: "sensors/1" });
  if (given) {
    kind.value = "queue";
    queue.value = given;
  } else if (ctx.query.get("kind")) {
    kind.value = ctx.query.get("kind");
  }
  const payload = kept("publish.payload", h("textarea", { rows: 7, spellcheck: "false", placeholder: '{"order": 7}' }));
  const key = text("publish.key");
  const priority = kept("publish.priority", select(PRIORITIES));
  const delay = text("publish.delay", { placeholder: "30s, 1h30m" });
  const headers = kept("publish.headers", h("textarea", { rows: 2, spellcheck: "false", placeholder: "source: console" }));
  const qos = kept("publish.qos", select(["0", "1", "2"]));
  const retain = kept("publish.retain", h("input", { type: "checkbox" }));
  const done = h("p.muted", { "aria-live": "polite" });
  const send = act("Publish", "write", publish, ".primary");
  const toQueue = [field("Queue", queue), field("Key", key, "Messages with one key stay in order."), field("Priority", priority), field("Delay", delay)];
  const toTopic = [field("Topic", topic), field("QoS", qos), field("Retain", retain)];
  shownBy(kind, { queue: toQueue, topic: toTopic });

  function properties() {
    const lines = headers.value.split("\n").filter((line) => line.trim());
    return Object.fromEntries(
      lines.map((line) => {
        const colon = line.indexOf(":");
        if (colon < 1) {
          throw new Mistake(`Headers: a line is a name, a colon and a value, not "${line}".`);
        }
        return [line.slice(0, colon).trim(), line.slice(colon + 1).trim()];
      }),
    );
  }

  async function publish() {
    if (kind.value === "topic") {
      if (!topic.value) {
        throw new Mistake("Say to which topic.");
      }
      const content = btoa(String.fromCharCode(...new TextEncoder().encode(payload.value)));
      const answer = await api.post("/publish", { topic: topic.value, payload: content, qos: Number(qos.value), retain: retain.checked, properties: properties() });
      put(done, answer.matched ? `Published to ${topic.value}.` : `Published to ${topic.value}; nobody listens now.`);
      return;
    }
    if (!queue.value) {
      throw new Mistake("Say to which queue.");
    }
    const made = { payload: payload.value, headers: properties() };
    for (const [field, control] of Object.entries({ key, priority, delay })) {
      if (control.value.trim()) {
        made[field] = control.value.trim();
      }
    }
    const [result] = (await api.post(`queues/${path(queue.value)}/messages`, { messages: [made] })).results;
    put(done, result.delay_id ? `${queue.value} delivers it later, as ${result.delay_id}.` : `${queue.value} has it, at offset ${number(result.offset)} of partition ${result.partition}.`);
  }

  const names = h("datalist", { id: "queues" });
  queue.addEventListener("input", async () => {
    try {
      const found = await api.get(`stats/queues${query({ prefix: queue.value, limit: 20 })}`, ctx.signal);
      names.replaceChildren(...found.queues.map((each) => h("option", { value: each.queue })));
    } catch {
      // Names are only proposed.
    }
  });
  const form = h("form.card", h("h2", "Publish"), field("To", kind), toQueue[0], toTopic[0], field("Payload", payload), h("div.row", toQueue.slice(1), toTopic.slice(1)), field("Headers", headers, "One a line, as name: value."), h("div.buttons", send), done, names);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send.click();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      send.click();
    }
  });
  return form;
}

// -- listening -------------------------------------------------------------------------------------------------------

function listener(ctx, given) {
  const kind = kept("listen.kind", select([["follow", "A queue, taking nothing"], ["consume", "A queue, as a consumer"], ["topic", "Topics of MQTT"]]));
  const queue = text("listen.queue", { list: "queues", placeholder: "orders" });
  const filter = text("listen.filter", { placeholder: "sensors/#" });
  const group = text("listen.group", { value: "console" });
  const auto = kept("listen.auto", h("input", { type: "checkbox" }));
  if (given) {
    kind.value = kind.value === "topic" ? "follow" : kind.value;
    queue.value = given;
  } else if (ctx.query.get("kind")) {
    kind.value = ctx.query.get("kind");
  }
  const list = h("div.messages.roving");
  const told = h("p.muted", { role: "status" }, "Not listening.");
  const start = act("Listen", "read", begin, ".primary");
  const stop = h("button", { type: "button", hidden: true, onclick: () => end("Stopped.") }, "Stop");
  const clear = h("button", { type: "button", onclick: () => list.replaceChildren() }, "Clear");
  const note = h("small.note", "A group keeps its place: the queue holds messages for it until it is deleted, under Groups. What is not settled goes to others once you stop.");
  const ofQueue = field("Queue", queue);
  const ofConsumer = [field("Group", group), field("Settle at once", auto), note];
  const ofTopic = field("Topics", filter, "A filter: + is one level, # all below.");
  shownBy(kind, { "follow consume": [ofQueue], consume: ofConsumer, topic: [ofTopic] });
  let listening = null;
  let count = 0;

  function add(node) {
    count += 1;
    list.prepend(node);
    while (list.children.length > SHOWN) {
      list.lastChild.remove();
    }
    put(told, `${plural(count, "message")} came${count > SHOWN ? `; the newest ${SHOWN} are shown` : ""}.`);
  }

  function end(text, tone) {
    listening?.abort();
    listening = null;
    show(stop, false);
    show(start, true);
    put(told, text);
    if (tone) {
      toast(text, tone);
    }
  }
  ctx.signal.addEventListener("abort", () => listening?.abort());

  async function begin() {
    const needed = kind.value === "topic" ? filter : queue;
    if (!needed.value || (kind.value === "consume" && !group.value)) {
      throw new Mistake(`Say ${kind.value === "topic" ? "which topics" : needed.value ? "for which group" : "which queue"}.`);
    }
    const aborting = (listening = new AbortController());
    const listen = { follow, consume, topic: watch }[kind.value];
    count = 0;
    show(start, false);
    show(stop, true);
    put(told, "Asking for messages …");
    // It goes on by itself; a button is not busy for so long.
    again(listen, aborting.signal);
  }

  const begun = () => put(told, count ? `Listening again: ${plural(count, "message")} came before.` : "Listening: nothing came yet.");

  /** Streams end when the broker restarts or reads its users again: then they begin anew. */
  async function again(listen, signal) {
    for (let wait = 1000; !signal.aborted; wait = Math.min(2 * wait, 30_000)) {
      try {
        await listen(signal);
      } catch (error) {
        if (signal.aborted) {
          return;
        }
        if (error.status) {
          end(inWords(error), "fail");
          return;
        }
        put(told, `The broker is away; listening again within ${wait / 1000} s.`);
      }
      await new Promise((resolve) => window.setTimeout(resolve, wait));
    }
  }

  async function follow(signal) {
    const at = `queues/${path(queue.value)}/partitions`;
    const places = Object.entries((await api.get(`topics/${path(topicOf(queue.value))}`, signal)).partition_offsets).slice(0, MAX_PARTITIONS);
    const next = places.map(([index, ends]) => ({ index, offset: ends.latest }));
    begun();
    while (!signal.aborted) {
      await new Promise((resolve) => window.setTimeout(resolve, EVERY_MS));
      if (document.hidden) {
        continue;
      }
      const answers = await Promise.all(next.map((place) => api.get(`${at}/${place.index}/messages${query({ from: place.offset, limit: 100 })}`, signal)));
      answers.forEach((answer, index) => (next[index].offset = answer.next_offset));
      answers.flatMap((answer) => answer.messages).sort((one, other) => one.enqueued_at - other.enqueued_at).forEach((each) => add(message(each)));
    }
  }

  async function consume(signal) {
    const asked = { group: group.value, consumer: `console-${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`, auto_ack: auto.checked, prefetch: SHOWN };
    const at = `queues/${path(queue.value)}`;
    await api.events(`${at}/stream${query(asked)}`, signal, begun, (each) => {
      const node = message(each, () => (asked.auto_ack ? [] : settling(at, each, () => node)));
      add(node);
    });
  }

  function settling(at, each, node) {
    const settle = (label, outcome, done) =>
      act(label, "read", async () => {
        await api.post(`${at}/settle`, { outcome, receipts: [each.receipt] });
        node().classList.add("settled");
        node().querySelector(".buttons").replaceChildren(h("span.muted", done));
      });
    return [settle("Done", "accept", "Settled."), settle("Failed", "fail", "It comes again, or is a dead letter now."), settle("Give back", "release", "Given back."), settle("Reject", "reject", "It is a dead letter now.")];
  }

  async function watch(signal) {
    await api.events(`subscriptions/${path(filter.value)}/stream`, signal, begun, (each) => {
      if (each.missed) {
        list.prepend(h("p.muted", `${plural(each.missed, "message")} missed: they came faster than this page takes them.`));
      }
      if (each.topic) {
        add(message({ ...each, enqueued_at: Date.now() / 1000 }));
      }
    });
  }

  return h("section.card", h("h2", "Listen"), field("What", kind), ofQueue, ofTopic, ofConsumer, h("div.buttons", start, stop, clear), told, list);
}
