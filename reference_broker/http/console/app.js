// The frame: which view the address asks for, keys, who asks, whether the broker is there.
import { Poller, Refused, signedIn, signOut } from "./api.js";
import { forget } from "./charts.js";
import { h, put, rove, show } from "./dom.js";
import { askWho, dialog, findOut, inWords, me } from "./ui.js";
import { live } from "./views_live.js";
import { overview, sessions, tenants, topics } from "./views_node.js";
import { queue } from "./views_queue.js";
import { queues } from "./views_queues.js";
import { traces } from "./views_traces.js";

const VIEWS = [
  ["", "Overview", "o", overview],
  ["queues", "Queues", "q", (ctx) => (ctx.params.length ? queue(ctx) : queues(ctx))],
  ["sessions", "Sessions", "s", sessions],
  ["topics", "Topics", "p", topics],
  ["live", "Live", "l", live],
  ["tenants", "Tenants", "n", tenants],
  ["traces", "Traces", "r", traces],
];
const main = document.getElementById("main");
const state = document.getElementById("state");
let current = null;

/** What a view gets: its place, its part of the address, and what it asks for as long as it is looked at. */
class Context {
  constructor(params, query) {
    this.params = params;
    this.query = query;
    this.aborting = new AbortController();
    this.signal = this.aborting.signal;
    this.pollers = [];
    this.notice = h("div.empty", { hidden: true, role: "alert" });
    this.body = h("div");
    main.replaceChildren(this.notice, this.body);
  }

  title(text, ...beside) {
    document.title = `${text} · Assay console`;
    this.heading = h("h1", { tabindex: -1 }, text);
    this.body.append(h("div.heading", this.heading, beside));
  }

  add(...nodes) {
    this.body.append(...nodes);
  }

  /** Asks now and every so often, while the view is seen. */
  every(ms, work) {
    const poller = new Poller(ms, work, (error, wait) => this.told(error, wait, poller));
    this.pollers.push(poller);
    return poller;
  }

  told(error, wait, poller) {
    if (this.signal.aborted) {
      return;
    }
    if (error === null) {
      show(state, false);
      show(this.notice, false);
      show(this.body, true);
      return;
    }
    const text = inWords(error);
    const is = error instanceof Refused ? error.status : -1;
    if (is === 401) {
      askWho(restart);
    } else if (is === 403 || is === 404) {
      put(this.notice, text);
      show(this.notice, true);
      show(this.body, false);
      return;
    }
    const again = h("button", { type: "button", onclick: () => (is === 401 ? askWho(restart) : poller.now()) }, is === 401 ? "Sign in" : "Try now");
    state.replaceChildren(h("p", text, is === 401 ? "" : ` Next try within ${Math.ceil(wait / 1000)} s; what is shown may be old.`), again);
    show(state, true);
  }

  /** Writes into the address without asking for another view. */
  note(values) {
    for (const [name, value] of Object.entries(values)) {
      value ? this.query.set(name, value) : this.query.delete(name);
    }
    const asked = String(this.query);
    history.replaceState(null, "", `${location.hash.split("?")[0] || "#/"}${asked ? `?${asked}` : ""}`);
  }

  close() {
    this.aborting.abort();
    this.pollers.forEach((poller) => poller.stop());
  }
}

function view(first) {
  const [where, asked] = location.hash.replace(/^#\/?/, "").split("?");
  let parts;
  try {
    parts = where.split("/").map(decodeURIComponent);
  } catch {
    parts = ["nowhere"]; // not percent-encoded as it should be
  }
  const [name, ...params] = parts;
  const found = VIEWS.find((each) => each[0] === name);
  current?.close();
  show(state, false);
  for (const link of document.querySelectorAll("#views a")) {
    link.toggleAttribute("aria-current", false);
    if (link.dataset.view === name) {
      link.setAttribute("aria-current", "page");
    }
  }
  current = new Context(params.filter((part) => part !== ""), new URLSearchParams(asked));
  if (!found) {
    current.title("There is no such view");
    current.add(h("p", h("a", { href: "#/" }, "Back to the overview")));
  } else {
    found[3](current);
  }
  for (const link of document.querySelectorAll("nav [aria-current]")) {
    const nav = link.closest("nav");
    const [inner, outer] = [link.getBoundingClientRect(), nav.getBoundingClientRect()];
    nav.scrollLeft += inner.left - outer.left - (outer.width - inner.width) / 2; // on a phone they do not all fit
  }
  if (!first) {
    window.scrollTo(0, 0);
    (current.focus ?? current.heading)?.focus({ preventScroll: true });
  }
}

function restart() {
  forget();
  view(true);
}

async function begin() {
  const start = new Poller(1000, findOut, (error, wait) => {
    if (error === null) {
      start.stop();
      view(true);
    } else if (error.status === 401) {
      start.stop();
      current = new Context([], new URLSearchParams());
      current.title("Sign in");
      current.add(h("p.lead", "This broker has users: say who you are."));
      current.add(h("button.primary", { type: "button", onclick: () => askWho(restart) }, "Sign in"));
      askWho(restart);
    } else {
      state.replaceChildren(h("p", `${inWords(error)} Next try within ${Math.ceil(wait / 1000)} s.`));
      show(state, true);
    }
  });
}

// -- the frame's own buttons and keys --------------------------------------------------------------------------------

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    window.localStorage.setItem("assay-theme", root.dataset.theme);
  } catch {
    // Without storage the choice lasts for this page.
  }
}

function help() {
  const keys = [
    ["/", "Search in this view"],
    ["↓ ↑ or j k", "Walk over a list; Home and End, too"],
    ["Enter", "Open what is chosen"],
    ["Ctrl Enter", "Publish what is typed in Live"],
    ["t", "Light or dark"],
    ["Esc", "Close a dialog"],
    ...VIEWS.map(([, label, key]) => [`g ${key}`, label]),
  ];
  dialog("Keys", [
    h("dl.keys", keys.map(([key, what]) => h("div", h("dt", key.split(" ").map((part) => (part === "or" ? " or " : h("kbd", part)))), h("dd", what)))),
    h("p.muted", "All that the console does can be asked of ", h("code", "/api/v1"), " by programs as well: the broker serves the description at ", h("code", "/api/v1/openapi.json"), "."),
  ]);
}

let went = 0;

document.addEventListener("keydown", (event) => {
  rove(event);
  const typing = event.target.closest("input, textarea, select, dialog");
  if (event.defaultPrevented || typing || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  const view = Date.now() - went < 1500 && VIEWS.find((each) => each[2] === event.key);
  went = 0;
  if (view) {
    location.hash = `#/${view[0]}`;
  } else if (event.key === "g") {
    went = Date.now();
  } else if (event.key === "?") {
    help();
  } else if (event.key === "t") {
    switchTheme();
  } else if (event.key === "/") {
    event.preventDefault();
    if (current?.search) {
      current.search.focus();
    } else {
      location.hash = "#/queues?search=1";
    }
  }
});

document.getElementById("views").append(
  ...VIEWS.map(([name, label]) => h("li", h("a", { href: `#/${name}`, "data-view": name }, label))),
);
document.getElementById("theme").addEventListener("click", switchTheme);
document.getElementById("help").addEventListener("click", help);
document.getElementById("who").addEventListener("click", () => {
  if (!signedIn()) {
    askWho(restart);
    return;
  }
  dialog(me.username ? `Signed in as ${me.username}` : "Signed in", h("p", `You may ${me.scopes.join(", ")}${me.tenant ? `, within the tenant ${me.tenant}` : ""}.`), {
    label: "Sign out",
    async work() {
      signOut();
      me.known = false;
      forget();
      current?.close();
      begin();
    },
  });
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says which view it is
  main.focus();
});
window.addEventListener("hashchange", () => me.known && view(false));
begin();
