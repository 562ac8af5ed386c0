"use strict";
// Fills the cases of an area when they are opened: their bodies come packed (zlib, base64), since there are hundreds.
(function () {
  const packed = document.getElementById("packed");
  if (!packed || !window.DecompressionStream) {
    return;
  }
  let bodies = null;

  function unpack() {
    const bytes = Uint8Array.from(window.atob(packed.textContent.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).json();
  }

  async function fill(details) {
    bodies = bodies || unpack();
    const body = details.querySelector(".case-body");
    if (!body.hasChildNodes()) {
      body.innerHTML = (await bodies)[details.id] || "";
    }
  }

  function openNamed() {
    const named = document.getElementById(decodeURIComponent(window.location.hash.slice(1)));
    if (named && named.matches("details.case")) {
      named.open = true;
      fill(named).then(() => named.scrollIntoView());
    }
  }

  for (const details of document.querySelectorAll("details.case")) {
    details.addEventListener("toggle", () => details.open && fill(details));
  }
  window.addEventListener("hashchange", openNamed);
  openNamed();
})();
