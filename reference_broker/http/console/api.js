// Asks the broker. Who asks is kept in memory, or in this tab if one wishes; no cookie, nothing that other pages see.

const STORE = "assay-console-who";
const ROOT = new URL("../", document.baseURI);
const TIMEOUT_MS = 15_000;

let authorization = null;
let credentials = "omit"; // The browser must not ask by a window of its own, nor add what it remembers.
try {
  authorization = window.sessionStorage.getItem(STORE);
} catch {
  // Then it is kept in memory.
}

/** What the broker refused, or that it is not there: `status` 0. */
export class Refused extends Error {
  constructor(status, code, detail, retryAfter) {
    super(detail);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }

  /** What to do about it. */
  get advice() {
    if (this.status === 0) {
      return "Is the broker running, and does this machine reach it? The console tries again by itself.";
    }
    return (
      {
        unauthenticated: "Sign in with a user or a token.",
        not_allowed: "Ask for a token with more scopes (assay token), or for an access rule.",
        rate_limit: "The broker lets one client ask only so often (http.requests_per_s): wait a moment.",
        busy: "The broker is busy: try again in a moment.",
        unknown_queue: "It may have been deleted meanwhile.",
        in_use: "Somebody uses it: consumers must leave first.",
        no_such_route: "This broker does not have that; is it older than the console?",
      }[this.code] ?? ""
    );
  }
}

export function signIn({ token, username, password, keep }) {
  const pair = new TextEncoder().encode(`${username}:${password}`);
  authorization = token ? `Bearer ${token}` : `Basic ${btoa(String.fromCharCode(...pair))}`;
  try {
    window.sessionStorage.removeItem(STORE);
    if (keep) {
      window.sessionStorage.setItem(STORE, authorization);
    }
  } catch {
    // Then it is kept in memory.
  }
}

export function signOut() {
  authorization = null;
  try {
    window.sessionStorage.removeItem(STORE);
  } catch {
    // It was never there.
  }
}

export const signedIn = () => authorization !== null;

/** A path of segments that may hold anything. */
export const path = (...segments) => segments.map((each) => encodeURIComponent(each)).join("/");

export function query(values) {
  const asked = Object.entries(values).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  return asked.length ? `?${new URLSearchParams(asked)}` : "";
}

async function send(method, where, body, signal, accept) {
  const headers = { accept };
  if (authorization) {
    headers.authorization = authorization;
  }
  if (body !== undefined) {
    headers["content-type"] = "application/json";
  }
  const asked = {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
    cache: "no-store",
    redirect: "error",
  };
  const url = new URL(where.startsWith("/") ? `.${where}` : `api/v1/${where}`, ROOT);
  try {
    return await fetch(url, { ...asked, credentials });
  } catch (error) {
    if (signal.aborted || location.protocol !== "https:" || authorization || credentials !== "omit") {
      throw error;
    }
    // A listener that goes by certificates has the browser show its own.
    const answer = await fetch(url, { ...asked, credentials: "same-origin" });
    credentials = "same-origin";
    return answer;
  }
}

async function refusal(answer) {
  let problem = {};
  try {
    problem = await answer.json();
  } catch {
    // Something between here and the broker answered.
  }
  const detail = problem.detail || problem.title || `the answer was ${answer.status} ${answer.statusText}`;
  return new Refused(answer.status, problem.code ?? "", detail, Number(answer.headers.get("retry-after")) || 0);
}

async function ask(method, where, body, signal) {
  const late = AbortSignal.timeout(TIMEOUT_MS);
  const both = signal ? AbortSignal.any([signal, late]) : late;
  let answer;
  try {
    answer = await send(method, where, body, both, "application/json");
    if (answer.ok) {
      return await answer.json();
    }
  } catch (error) {
    if (signal?.aborted) {
      throw error;
    }
    throw new Refused(0, "away", late.aborted ? "The broker did not answer in time." : "The broker cannot be reached.");
  }
  // What failed in part says so in the same form.
  throw await refusal(answer);
}

export const api = {
  get: (where, signal) => ask("GET", where, undefined, signal),
  post: (where, body = {}) => ask("POST", where, body),
  put: (where, body) => ask("PUT", where, body),
  patch: (where, body) => ask("PATCH", where, body),
  remove: (where) => ask("DELETE", where),

  /** Server-sent events, until the signal: `begun()` once they may come, `on(object)` for each. `EventSource` could not
   *  say who asks. */
  async events(where, signal, begun, on) {
    const answer = await send("GET", where, undefined, signal, "text/event-stream");
    if (!answer.ok) {
      throw await refusal(answer);
    }
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let first = true; ; first = false) {
      const { value, done } = await reader.read();
      if (done) {
        return;
      }
      if (first) {
        begun();
      }
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split("\n").filter((line) => line.startsWith("data: "));
        if (data.length) {
          on(JSON.parse(data.map((line) => line.slice(6)).join("\n")));
        }
      }
    }
  },
};

const LONGEST_MS = 30_000;

/** Asks again and again while the page is seen: `work(signal)` every so often, less often while the broker is away. */
export class Poller {
  constructor(everyMs, work, told) {
    this.everyMs = everyMs;
    this.work = work;
    this.told = told;
    this.failures = 0;
    this.aborting = new AbortController();
    this.seen = () => (document.hidden ? this.rest() : this.now());
    document.addEventListener("visibilitychange", this.seen);
    this.now();
  }

  rest() {
    window.clearTimeout(this.timer);
  }

  async now() {
    this.rest();
    if (this.running || this.aborting.signal.aborted || document.hidden) {
      this.again = this.running; // what is asked for has changed meanwhile
      return;
    }
    this.running = true;
    this.again = false;
    let wait = this.everyMs;
    try {
      await this.work(this.aborting.signal);
      this.failures = 0;
      this.told(null);
    } catch (error) {
      if (this.aborting.signal.aborted) {
        return;
      }
      this.failures += 1;
      const asked = (error.retryAfter ?? 0) * 1000;
      wait = Math.min(Math.max(this.everyMs * 2 ** this.failures, asked), LONGEST_MS);
      this.told(error, wait, this);
    } finally {
      this.running = false;
    }
    if (!document.hidden && !this.aborting.signal.aborted) {
      this.rest();
      this.timer = window.setTimeout(() => this.now(), this.again ? 0 : wait);
    }
  }

  stop() {
    this.rest();
    this.aborting.abort();
    document.removeEventListener("visibilitychange", this.seen);
  }
}
