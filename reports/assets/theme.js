"use strict";
// Applies the reader's choice of light or dark before the page is painted; the system decides when there is none.
(function () {
  let saved = null;
  try {
    saved = window.localStorage.getItem("assay-theme");
  } catch {
    // Some browsers refuse storage to pages opened from a file; the choice then lasts for one page.
  }
  if (saved === "light" || saved === "dark") {
    document.documentElement.dataset.theme = saved;
  }
})();
