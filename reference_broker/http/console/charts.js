// Figures over time, as small drawings. What is remembered is bounded: points of a series, and series.
import { h, number, put, rate, svg } from "./dom.js";

const MAX_POINTS = 180;
const MAX_SERIES = 600;
const series = new Map();

/** Remembers figures of a thing (`counters` become rates) and gives its points, each `{ t, <name>: value or null }`. */
export function remember(thing, figures, counters = {}) {
  const points = series.get(thing) ?? [];
  series.delete(thing); // those looked at last stand last
  series.set(thing, points);
  if (series.size > MAX_SERIES) {
    series.delete(series.keys().next().value);
  }
  const t = performance.now() / 1000;
  const last = points.at(-1);
  const point = { t, ...figures, counters };
  for (const [name, value] of Object.entries(counters)) {
    const before = last?.counters[name];
    const known = before !== undefined && value >= before && t - last.t > 0.05 && t - last.t < 60;
    point[name] = known ? (value - before) / (t - last.t) : null; // not over a restart or a long pause
  }
  if (!last || t - last.t > 0.25) {
    points.push(point);
    points.splice(0, Math.max(0, points.length - MAX_POINTS));
  }
  return points;
}

export function forget() {
  series.clear();
}

export const latest = (points, name) => points.at(-1)?.[name] ?? null;

const WIDTH = 240;

function drawn(points, name, height, highest) {
  const first = points.length > 1 ? points[0].t : 0;
  const span = points.length > 1 ? points.at(-1).t - first : 1;
  let path = "";
  let pen = false;
  for (const point of points) {
    const value = point[name];
    if (value === null || value === undefined) {
      pen = false;
      continue;
    }
    const x = ((point.t - first) / span) * WIDTH;
    const y = height - 1.5 - (value / highest) * (height - 3);
    path += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = true;
  }
  return path;
}

const top = (points, names) =>
  Math.max(...points.flatMap((point) => names.map((name) => point[name] ?? 0)), 0) || 1;

/** A line without axes beside a number that says the same: hidden from who does not see it. */
export function spark(tone = "c1") {
  const line = svg("path", { class: `line ${tone}` });
  const node = svg("svg", { class: "spark", viewBox: `0 0 ${WIDTH} 40`, preserveAspectRatio: "none", "aria-hidden": "true" }, line);
  return {
    node,
    set(points, name) {
      line.setAttribute("d", drawn(points, name, 40, top(points, [name])));
    },
  };
}

/** A chart of several lines: `lines` are `[name, label]`; its description says the figures in words. */
export function chart(title, lines, format = number) {
  const drawing = lines.map((_, index) => svg("path", { class: `line c${index + 1}` }));
  const cross = svg("path", { class: "cross" });
  const figure = svg("svg", { viewBox: `0 0 ${WIDTH} 80`, preserveAspectRatio: "none", role: "img" }, svg("path", { class: "grid", d: `M0 .5H${WIDTH}M0 40H${WIDTH}M0 79.5H${WIDTH}` }), drawing, cross);
  const highest = h("span.highest");
  const span = h("span.span");
  const values = lines.map(() => h("strong", "–"));
  const key = h("dl.key", lines.map(([, label], index) => h("div", h("dt", h(`i.swatch.c${index + 1}`), label), h("dd", values[index]))));
  const node = h("figure.chart", h("figcaption", title), h("div.plot", figure, highest, span), key);
  let shown = [];
  let pointed = null;
  function tell() {
    const at = pointed === null ? shown.length - 1 : Math.min(pointed, shown.length - 1);
    const point = shown[at] ?? {};
    lines.forEach(([name], index) => put(values[index], point[name] === null || point[name] === undefined ? "–" : format(point[name])));
    const ago = shown.length ? Math.round(shown.at(-1).t - (point.t ?? 0)) : 0;
    put(span, pointed === null ? (shown.length > 1 ? `last ${Math.round(shown.at(-1).t - shown[0].t)} s` : "now") : `${ago} s ago`);
  }
  figure.addEventListener("pointermove", (event) => {
    const box = figure.getBoundingClientRect();
    if (shown.length > 1 && box.width) {
      const t = shown[0].t + ((event.clientX - box.left) / box.width) * (shown.at(-1).t - shown[0].t);
      pointed = shown.reduce((best, point, index) => (Math.abs(point.t - t) < Math.abs(shown[best].t - t) ? index : best), 0);
      const x = ((shown[pointed].t - shown[0].t) / (shown.at(-1).t - shown[0].t)) * WIDTH;
      cross.setAttribute("d", `M${x.toFixed(1)} 0V80`);
      tell();
    }
  });
  figure.addEventListener("pointerleave", () => {
    pointed = null;
    cross.setAttribute("d", "");
    tell();
  });
  return {
    node,
    set(points) {
      shown = points;
      const names = lines.map(([name]) => name);
      const most = top(points, names);
      names.forEach((name, index) => drawing[index].setAttribute("d", drawn(points, name, 80, most)));
      put(highest, format(most));
      tell();
      const said = lines.map(([name, label], index) => `${label} ${values[index].textContent}, at most ${format(top(points, [name]))}`);
      figure.setAttribute("aria-label", `${title}: ${said.join("; ")}`);
    },
  };
}

export const rates = (title, lines) => chart(title, lines, rate);
