// Makes elements. Whatever comes from the broker becomes text, never markup; the page's policy forbids markup as well.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) {
      continue;
    }
    if (name.startsWith("on")) {
      node.addEventListener(name.slice(2), value);
    } else if (name === "value" || name === "checked" || name === "disabled") {
      node[name] = value;
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An element: `h("button.primary", { type: "button", onclick }, "Send")`. */
export function h(kind, props, ...children) {
  const [name, ...classes] = kind.split(".");
  const node = document.createElement(name || "div");
  if (classes.length) {
    node.className = classes.join(" ");
  }
  if (props === null || props === undefined || typeof props !== "object" || props instanceof Node || Array.isArray(props)) {
    return fill(node, {}, [props, ...children]);
  }
  return fill(node, props, children);
}

export function svg(name, props = {}, ...children) {
  return fill(document.createElementNS(SVG, name), props, children);
}

/** Changes a text only where it differs, so that nothing is announced or painted in vain. */
export function put(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) {
    node.textContent = wanted;
  }
}

export function show(node, shown) {
  if (node.hidden === shown) {
    node.hidden = !shown;
  }
}

/** Has a container hold one element for each item, by key: what stays keeps its element, its focus and its state.
 *  `make(item)` gives `{ node, update(item) }`. */
export function sync(container, items, key, make) {
  const known = (container.parts ??= new Map());
  const wanted = new Set(items.map(key));
  for (const [name, part] of known) {
    if (!wanted.has(name)) {
      part.node.remove();
      known.delete(name);
    }
  }
  let before = container.firstChild;
  for (const item of items) {
    const name = key(item);
    let part = known.get(name);
    if (!part) {
      part = make(item);
      known.set(name, part);
    }
    if (part.node === before) {
      before = before.nextSibling;
    } else {
      container.insertBefore(part.node, before);
    }
    part.update?.(item);
  }
}

/** A table whose columns are `[heading, cell(item) -> text or node, { num, stack }]`; rows are kept by key. */
export function table(caption, columns, key, { open } = {}) {
  const body = h("tbody");
  const node = h(
    "div.scroll",
    h(
      "table.stack",
      h("caption.hidden-text", caption),
      h("thead", h("tr", columns.map(([name, , more]) => h(more?.num ? "th.num" : "th", { scope: "col" }, name)))),
      body,
    ),
  );
  function row(item) {
    let current = item;
    const cells = columns.map(([name, , more], index) => {
      const classes = more?.num ? ".num" : "";
      return index === 0 ? h(`th${classes}`, { scope: "row" }) : h(`td${classes}`, { "data-label": name });
    });
    const made = h(open ? "tr.opens" : "tr", cells);
    if (open) {
      made.addEventListener("click", (event) => {
        if (!event.target.closest("a, button, input, summary") && !String(window.getSelection())) {
          open(current);
        }
      });
    }
    return {
      node: made,
      update(next) {
        current = next;
        columns.forEach(([, cell], index) => {
          const held = cells[index];
          const content = cell(next, held.firstElementChild);
          if (content instanceof Node) {
            if (held.firstChild !== content) {
              held.replaceChildren(content);
            }
          } else {
            put(held, content ?? "");
          }
        });
      },
    };
  }
  return {
    node,
    set(items) {
      sync(body, items, key, row);
    },
  };
}

/** Arrow keys, Home and End walk over the first link or button of each row; one of them is in the order of tabs. */
export function rove(event) {
  const rows = event.target.closest("tbody, .roving");
  const step = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
  if (!rows || event.target.closest("input, textarea, select")) {
    return;
  }
  const stops = [...rows.children].map((row) => row.querySelector("a, button, summary")).filter((stop) => stop);
  const here = stops.indexOf(event.target);
  const next = { Home: 0, End: stops.length - 1 }[event.key] ?? (step && here >= 0 ? here + step : undefined);
  if (next !== undefined && stops[next]) {
    event.preventDefault();
    stops[next].focus();
  }
}

let drafts = new Map();

/** Keeps what is typed into a control while other views are looked at. */
export function kept(name, control) {
  const property = control.type === "checkbox" ? "checked" : "value";
  if (drafts.has(name)) {
    control[property] = drafts.get(name);
  }
  control.addEventListener("input", () => drafts.set(name, control[property]));
  control.addEventListener("change", () => drafts.set(name, control[property]));
  return control;
}

let ids = 0;

/** A control with its label, and perhaps a hint. */
export function field(label, control, hint) {
  const id = (control.id ||= `field-${++ids}`);
  const note = hint ? h("small", { id: `${id}-hint` }, hint) : null;
  if (note) {
    control.setAttribute("aria-describedby", note.id);
  }
  return control.type === "checkbox"
    ? h("div.field.check", control, h("label", { for: id }, label), note)
    : h("div.field", h("label", { for: id }, label), control, note);
}

export function select(options, props = {}) {
  return h("select", props, options.map((each) => h("option", { value: each[0] ?? each }, each[1] ?? each)));
}

/** What stands where there is nothing yet: what it would be, and a command that makes one. */
export function empty(title, text, command) {
  return h("div.empty", h("h3", title), h("p", text), command && code(command));
}

/** A command or a payload with a button that copies it. */
export function code(text) {
  const copy = h("button.copy", { type: "button", onclick: copied }, "Copy");
  async function copied() {
    let done = "Select and copy by hand";
    try {
      await navigator.clipboard.writeText(text);
      done = "Copied";
    } catch {
      window.getSelection().selectAllChildren(pre);
    }
    put(copy, done);
    window.setTimeout(() => put(copy, "Copy"), 2000);
  }
  const pre = h("pre", { tabindex: 0 }, text);
  return h("div.code", pre, copy);
}

// -- figures ---------------------------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value) => (Math.abs(value) < 100_000 ? whole : short).format(value);

export function rate(value) {
  if (value === null || value === undefined) {
    return "–";
  }
  return `${value > 0 && value < 10 ? value.toFixed(1) : number(value)}/s`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${at && value < 10 ? value.toFixed(1) : whole.format(value)} ${units[at]}`;
}

export function duration(seconds) {
  if (seconds > 0 && seconds < 0.001) {
    return `${Math.round(seconds * 1e6)} µs`;
  }
  if (seconds < 1) {
    return `${Math.round(seconds * 1000)} ms`;
  }
  if (seconds < 120) {
    return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  }
  const [days, hours, minutes] = [seconds / 86_400, (seconds / 3600) % 24, (seconds / 60) % 60].map(Math.floor);
  return days ? `${days} d ${hours} h` : hours ? `${hours} h ${minutes} min` : `${minutes} min`;
}

/** Unix seconds as a local time; 0 = unknown. */
export function moment(seconds) {
  if (!seconds) {
    return "–";
  }
  const at = new Date(seconds * 1000);
  const today = at.toDateString() === new Date().toDateString();
  return at.toLocaleString([], today ? { timeStyle: "medium" } : { dateStyle: "medium", timeStyle: "medium" });
}

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
