"use strict";
// Theme switch, copy buttons, and opening folded parts for print.
(function () {
  const root = document.documentElement;

  function isDark() {
    return root.dataset.theme
      ? root.dataset.theme === "dark"
      : window.matchMedia("(prefers-color-scheme: dark)").matches;
  }

  const button = document.querySelector("button.theme");
  if (button) {
    button.addEventListener("click", function () {
      root.dataset.theme = isDark() ? "light" : "dark";
      try {
        window.localStorage.setItem("assay-theme", root.dataset.theme);
      } catch {
        // Without storage the choice lasts for this page.
      }
      document.dispatchEvent(new CustomEvent("assay-theme"));
    });
  }

  async function copy(text) {
    if (navigator.clipboard && window.isSecureContext) {
      await navigator.clipboard.writeText(text);
      return;
    }
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }

  document.addEventListener("click", function (event) {
    const control = event.target.closest("button.copy"); // also one that a script has added since
    if (control) {
      copy(control.dataset.copy).then(
        () => say(control, "Copied"),
        () => say(control, "Select and copy by hand"),
      );
    }
  });

  function say(control, text) {
    control.textContent = text;
    window.setTimeout(() => (control.textContent = "Copy"), 2000);
  }

  window.addEventListener("beforeprint", function () {
    for (const details of document.querySelectorAll("details.finding")) {
      details.open = true;
    }
  });
})();
