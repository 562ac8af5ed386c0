"use strict";
// Applies the reader's choice of light or dark before the page is painted; the system decides when there is none.
(function () {
  try {
    const saved = window.localStorage.getItem("assay-theme");
    if (saved === "light" || saved === "dark") {
      document.documentElement.dataset.theme = saved;
    }
  } catch {
    // Without storage the system decides.
  }
})();
