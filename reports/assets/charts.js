"use strict";
// Draws the figures that the page carries as JSON, in the colours of the style sheet, and again when the theme changes.
(function () {
  if (!window.Plotly) {
    return;
  }
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);

  function colour(name) {
    probe.style.color = `var(--${name})`;
    return window.getComputedStyle(probe).color;
  }

  function themed(figure, narrow) {
    const text = colour("text");
    const grid = colour("line");
    const layout = structuredClone(figure.layout);
    Object.assign(layout, {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: text, family: window.getComputedStyle(document.body).fontFamily, size: 13 },
      margin: { l: narrow ? 48 : 64, r: 12, t: 30, b: 48, ...layout.margin },
      hoverlabel: { bgcolor: colour("raised"), bordercolor: grid, font: { color: text } },
    });
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(name)) {
        Object.assign(layout[name], { gridcolor: grid, linecolor: grid, zerolinecolor: grid, automargin: true });
      }
    }
    for (const shape of layout.shapes || []) {
      shape.fillcolor = colour(shape.name === "phase" ? "phase" : "band");
      shape.line.color = colour(shape.name === "phase" ? "line" : "band-edge");
    }
    for (const name of Object.keys(layout)) {
      // A legend at the side would leave no room for the lines; the hover label and the table name them.
      if (narrow && /^legend\d*$/.test(name) && layout[name].orientation === "v") {
        layout[name].visible = false;
      }
    }
    const data = figure.data.map(function (trace) {
      const own = colour(`series-${trace.meta.colour + 1}`);
      const line = trace.line ? { ...trace.line, color: own } : undefined;
      return { ...trace, ...(line ? { line } : {}), marker: { ...trace.marker, color: own } };
    });
    return { data, layout };
  }

  function draw() {
    for (const source of document.querySelectorAll("script.plot-data")) {
      const target = document.getElementById(source.dataset.plot);
      const { data, layout } = themed(JSON.parse(source.textContent), target.clientWidth < 560);
      window.Plotly.react(target, data, layout, {
        responsive: true,
        displayModeBar: false, // drag to zoom, double-click to see all again
      });
    }
  }

  draw();
  document.addEventListener("assay-theme", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
