"use strict";
// Filters the rows of a table by a form. The state lives in the address, so a filtered view can be linked to.
(function () {
  for (const form of document.querySelectorAll("form[data-filter]")) {
    const table = document.getElementById(form.dataset.filter);
    const rows = Array.from(table.querySelectorAll("tr[data-row]"));
    const texts = rows.map((row) => `${row.textContent} ${row.dataset.text || ""}`.toLowerCase());
    const state = form.querySelector("output");
    const nothing = table.closest("div").parentElement.querySelector(".nothing");

    function read() {
      const wanted = new Map();
      for (const control of form.elements) {
        if (!control.name || (control.type === "checkbox" && !control.checked) || !control.value.trim()) {
          continue;
        }
        wanted.set(control.name, [...(wanted.get(control.name) || []), control.value.trim()]);
      }
      return wanted;
    }

    function fits(row, text, wanted) {
      for (const [name, values] of wanted) {
        if (name === "text") {
          if (!values[0].toLowerCase().split(/\s+/).every((word) => text.includes(word))) {
            return false;
          }
          continue;
        }
        const tokens = (row.dataset[name] || "").split(" ");
        // A verdict together with a broker means the verdict of that broker.
        const target = name === "verdict" && wanted.has("target") ? `${wanted.get("target")[0]}:` : "";
        if (!values.some((value) => tokens.includes(target + value))) {
          return false;
        }
      }
      return true;
    }

    function apply() {
      const wanted = read();
      let shown = 0;
      rows.forEach(function (row, index) {
        row.hidden = !fits(row, texts[index], wanted);
        shown += row.hidden ? 0 : 1;
      });
      for (const body of table.tBodies) {
        const own = Array.from(body.querySelectorAll("tr[data-row]"));
        body.hidden = own.length > 0 && own.every((row) => row.hidden);
      }
      state.textContent = `${shown} of ${rows.length} shown`;
      if (nothing) {
        nothing.hidden = shown > 0;
      }
      return wanted;
    }

    function remember() {
      const wanted = apply();
      const parts = Array.from(wanted, ([name, values]) => `${name}=${values.map(encodeURIComponent).join(",")}`);
      window.history.replaceState(null, "", parts.length ? `#${parts.join("&")}` : window.location.pathname);
    }

    function restore() {
      const hash = window.location.hash.slice(1);
      if (!hash.includes("=")) {
        apply();
        return;
      }
      const wanted = new Map(
        hash.split("&").map(function (part) {
          const [name, values = ""] = part.split("=");
          return [name, values.split(",").map(decodeURIComponent)];
        }),
      );
      for (const control of form.elements) {
        if (!control.name) {
          continue;
        }
        const values = wanted.get(control.name) || [];
        if (control.type === "checkbox") {
          control.checked = values.includes(control.value);
        } else {
          control.value = values[0] || "";
        }
      }
      apply();
      form.scrollIntoView({ block: "start" });
    }

    form.addEventListener("input", remember);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => window.setTimeout(remember, 0));
    window.addEventListener("hashchange", restore);
    restore();
  }
})();
