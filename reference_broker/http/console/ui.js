// What every view uses: who asks and may, buttons, dialogs, what is told.
import { api, Refused, signedIn, signIn, signOut } from "./api.js";
import { field, h, put, select, show } from "./dom.js";

/** Who the broker takes one for. */
export const me = { known: false, username: null, tenant: null, scopes: [] };

/** Why something cannot be done, or nothing. */
export function reason(scope) {
  if (!me.known || me.scopes.includes(scope)) {
    return "";
  }
  if (scope === "admin" && me.tenant) {
    return `This administers queues, which users of a tenant (${me.tenant}) may not.`;
  }
  return `This needs the scope "${scope}"; you have: ${me.scopes.join(", ")}. A token with more is made by assay token.`;
}

/** Tells what happened, where it is seen and read out. */
export function toast(text, tone = "pass") {
  const box = document.getElementById("toasts");
  const close = h("button.quiet", { type: "button", "aria-label": "Dismiss", onclick: () => gone() }, "×");
  const note = h(`div.toast.tone-${tone}`, h("p", text), close);
  function gone() {
    window.clearTimeout(timer);
    note.remove();
  }
  const timer = window.setTimeout(gone, tone === "fail" ? 20_000 : 6_000);
  box.append(note);
  while (box.children.length > 4) {
    box.firstChild.remove();
  }
}

/** What one typed cannot be used. */
export class Mistake extends Error {}

/** JSON that one typed. */
export function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Mistake(`${what}: that is not JSON (${error.message}).`);
  }
}

/** Whether the view that asked was left: nobody waits for the answer. */
export const isLeft = (error) => error.name === "AbortError";

export function inWords(error) {
  if (error instanceof Mistake) {
    return error.message;
  }
  if (!(error instanceof Refused)) {
    console.error(error);
    return `The console has a fault: ${error.message}`;
  }
  const text = error.message.charAt(0).toUpperCase() + error.message.slice(1);
  return `${text.replace(/[.!?]?$/, ".")} ${error.advice}`.trim();
}

/** A button that does something, says why it may not, and cannot be pressed twice. */
export function act(label, scope, work, kind = "") {
  const button = h(`button${kind}`, { type: "button" }, label);
  function look() {
    const why = reason(scope);
    button.toggleAttribute("data-refused", Boolean(why));
    button.setAttribute("aria-disabled", String(Boolean(why)));
    button.title = why;
  }
  button.addEventListener("click", async () => {
    look();
    if (button.title) {
      toast(button.title, "non-strict");
      return;
    }
    if (button.getAttribute("aria-busy") === "true") {
      return;
    }
    button.setAttribute("aria-busy", "true");
    try {
      await work();
    } catch (error) {
      if (!isLeft(error)) {
        toast(inWords(error), "fail");
      }
    } finally {
      button.removeAttribute("aria-busy");
    }
  });
  look();
  return button;
}

/** A dialog with a form; what `work` throws is told in it, and nothing typed is lost. */
export function dialog(title, content, { label = "OK", danger = false, work, ready = () => true, closable = true } = {}) {
  const refused = h("p.problem", { role: "alert", hidden: true });
  const send = h(danger ? "button.danger" : "button.primary", { type: "submit" }, label);
  const cancel = h("button", { type: "button", onclick: () => box.close() }, work ? "Cancel" : "Close");
  const form = h("form", { novalidate: true }, h("h2", { id: "dialog-title" }, title), content, refused, h("div.buttons", closable && cancel, work && send));
  const box = h("dialog", { "aria-labelledby": "dialog-title" }, form);
  const check = () => (send.disabled = !ready());
  form.addEventListener("input", check);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!work || !ready() || form.getAttribute("aria-busy") === "true") {
      return;
    }
    form.setAttribute("aria-busy", "true");
    show(refused, false);
    try {
      await work();
      box.close();
    } catch (error) {
      put(refused, inWords(error));
      show(refused, true);
    } finally {
      form.removeAttribute("aria-busy");
    }
  });
  box.addEventListener("cancel", (event) => closable || event.preventDefault());
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  check();
  box.showModal();
  return box;
}

/** Asks for the name of what is about to go for good. */
export function confirmByName(title, text, name, label, work) {
  const typed = h("input", { type: "text", autocomplete: "off", spellcheck: "false", autofocus: true });
  dialog(title, [h("p", text), field(["Type ", h("code", name), " to go on"], typed)], {
    label,
    danger: true,
    ready: () => typed.value === name,
    work,
  });
}

let asking = null;

/** Asks who one is. */
export function askWho(told) {
  if (asking?.open) {
    return;
  }
  const token = h("input", { type: "password", autocomplete: "off", spellcheck: "false" });
  const username = h("input", { type: "text", autocomplete: "username", spellcheck: "false" });
  const password = h("input", { type: "password", autocomplete: "current-password" });
  const keep = h("input", { type: "checkbox" });
  const way = select([["token", "a token"], ["user", "a user and a password"]]);
  const ways = {
    token: [field("Token", token, "From assay token, with the scope read, write or admin.")],
    user: [field("User", username), field("Password", password)],
  };
  const chosen = h("div", ways.token);
  way.addEventListener("change", () => chosen.replaceChildren(...ways[way.value]));
  asking = dialog(
    "Sign in",
    [
      h("p.muted", "The users and tokens of the broker. They are sent to it only, never kept in a cookie."),
      field("With", way),
      chosen,
      field("Remember until this tab is closed", keep),
    ],
    {
      label: "Sign in",
      ready: () => (way.value === "token" ? token.value.trim() !== "" : username.value !== ""),
      async work() {
        signIn({ token: way.value === "token" && token.value.trim(), username: username.value, password: password.value, keep: keep.checked });
        try {
          await findOut();
        } catch (error) {
          signOut();
          throw error;
        }
        told();
      },
    },
  );
  token.focus();
}

/** Asks the broker who it takes one for. */
export async function findOut(signal) {
  Object.assign(me, await api.get("whoami", signal), { known: true });
  const who = document.getElementById("who");
  put(who, me.username ?? (signedIn() ? "signed in" : "Sign in"));
  who.title = `${me.username ? `User ${me.username}` : "No user name"}${me.tenant ? ` of the tenant ${me.tenant}` : ""}; may ${me.scopes.join(", ")}`;
}
