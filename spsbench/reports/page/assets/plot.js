"use strict";
// Plots as SVG: they scale, print, follow the colours of the page and can be read out.
// Everything is made of elements and text nodes; no text ever becomes markup.

const NS = "http://www.w3.org/2000/svg";
const COLOURS = 8; // --c0 ... of the style sheet
const SHAPES = ["circle", "square", "triangle", "diamond", "down", "cross"];

function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(NS, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "n/a";
  const size = Math.abs(value);
  if (size >= 10000) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 100 ? Math.min(digits, 1) : digits);
}

function between(low, high, digits) {
  return low === null || high === null || low === undefined
    ? "no interval" : `${number(low, digits)} to ${number(high, digits)}`;
}

// Round numbers that cover low .. high.
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((m) => m >= raw * 0.999);
  const made = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-6; i++)
    made.push(+(i * step).toPrecision(12));
  return made;
}

function extent(values, fromZero) {
  let low = Math.min(...values), high = Math.max(...values);
  if (fromZero) low = Math.min(0, low);
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low >= 0 ? Math.max(0, low === 0 ? 0 : low - room) : low - room, high + room];
}

function scale([low, high], [from, to]) {
  return (value) => from + ((value - low) / (high - low)) * (to - from);
}

function shape(kind, x, y, r, attributes) {
  const points = {
    square: [[-r, -r], [r, -r], [r, r], [-r, r]],
    triangle: [[0, -r * 1.2], [r * 1.1, r], [-r * 1.1, r]],
    down: [[0, r * 1.2], [r * 1.1, -r], [-r * 1.1, -r]],
    diamond: [[0, -r * 1.3], [r * 1.3, 0], [0, r * 1.3], [-r * 1.3, 0]],
    cross: [[-r, -r], [0, -r / 3], [r, -r], [r / 3, 0], [r, r], [0, r / 3], [-r, r], [-r / 3, 0]],
  }[kind];
  if (!points) return s("circle", { cx: x, cy: y, r, ...attributes });
  const path = points.map(([dx, dy]) => `${x + dx},${y + dy}`).join(" ");
  return s("polygon", { points: path, ...attributes });
}

const look = (index) => ({
  colour: `var(--c${index % COLOURS})`,
  shape: SHAPES[index % SHAPES.length],
});

// One plot: its SVG, and the places of its marks for pointer and keyboard.
class Plot {
  constructor(width, height, label) {
    this.width = width;
    this.height = height;
    this.places = []; // {x, y, text}
    this.svg = s("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "img", tabindex: 0,
      "aria-label": `${label}. Arrow keys read its points; the table below has them all.`,
    });
    this.ring = s("circle", { r: 8, class: "ring", visibility: "hidden" });
  }

  add(...elements) { this.svg.append(...elements); }

  text(x, y, words, attributes = {}) { this.add(s("text", { x, y, ...attributes }, words)); }

  line(x1, y1, x2, y2, attributes) { this.add(s("line", { x1, y1, x2, y2, ...attributes })); }

  place(x, y, text) { this.places.push({ x, y, text }); }

  // The last step: points answer to the pointer and to the arrow keys.
  finish() {
    this.add(this.ring);
    let at = -1;
    const show = (index) => {
      at = index;
      const place = this.places[index];
      this.ring.setAttribute("cx", place.x);
      this.ring.setAttribute("cy", place.y);
      this.ring.setAttribute("visibility", "visible");
      const box = this.svg.getBoundingClientRect();
      tip.show(place.text, box.left + place.x * (box.width / this.width),
        box.top + place.y * (box.height / this.height));
    };
    const hide = () => { this.ring.setAttribute("visibility", "hidden"); tip.hide(); };
    this.svg.addEventListener("pointermove", (event) => {
      const box = this.svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * (this.width / box.width);
      const y = (event.clientY - box.top) * (this.height / box.height);
      let best = -1, least = 40 * 40;
      this.places.forEach((place, i) => {
        const far = (place.x - x) ** 2 + (place.y - y) ** 2;
        if (far < least) { least = far; best = i; }
      });
      if (best >= 0) show(best); else hide();
    });
    this.svg.addEventListener("pointerleave", hide);
    this.svg.addEventListener("blur", hide);
    this.svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") return hide();
      if (!step || !this.places.length) return undefined;
      event.preventDefault();
      const count = this.places.length;
      return show(at < 0 ? (step > 0 ? 0 : count - 1) : (at + step + count) % count);
    });
    return this.svg;
  }
}

// Rows one below the other: name and value above, interval below.
function forest(axes, rows, width) {
  const marks = axes.series.flatMap((series) => series.marks);
  const step = 38, top = 6, bottom = 26;
  const plot = new Plot(width, top + marks.length * step + bottom, axes.title);
  const values = marks.flatMap((m) => [m.y, m.low ?? m.y, m.high ?? m.y]);
  if (axes.one) values.push(1);
  const x = scale(extent(values, false), [8, width - 8]);
  const floor = plot.height - bottom;
  for (const tick of ticks(...extent(values, false), Math.floor(width / 80))) {
    plot.line(x(tick), top, x(tick), floor, { class: "grid" });
    plot.text(x(tick), floor + 16, String(tick), { class: "tick", "text-anchor": "middle" });
  }
  if (axes.one) plot.line(x(1), top, x(1), floor, { class: "one" });
  marks.forEach((m, i) => {
    const row = rows[m.row], y = top + i * step + 26;
    const { colour, shape: kind } = row.look;
    const value = `${number(m.y, axes.digits)}${axes.unit}`;
    const room = Math.floor((width - 16) / 6.4) - value.length - 2;
    const name = row.name.length > room ? `${row.name.slice(0, room - 1)}…` : row.name;
    plot.text(8, y - 11, name, { class: "label halo" });
    plot.text(width - 8, y - 11, value, { class: "value halo", "text-anchor": "end" });
    if (m.low !== null) {
      plot.line(x(m.low), y, x(m.high), y, { stroke: colour, "stroke-width": 3, "stroke-linecap": "round", opacity: 0.55 });
    }
    plot.add(shape(kind, x(m.y), y, 5, { fill: colour, class: "mark" }));
    plot.place(x(m.y), y, [row.name, `${axes.title}: ${value}`,
      `95 % interval: ${between(m.low, m.high, axes.digits)}`, `${row.n} generations`]);
  });
  return plot.finish();
}

// Two axes; lines, intervals, levels, the diagonal.
function curves(axes, rows, width, joined) {
  const height = Math.round(Math.min(400, Math.max(220, width * 0.62)));
  const right = 12, top = 10, bottom = 42;
  const plot = new Plot(width, height, axes.title || axes.y || axes.x);
  const marks = axes.series.flatMap((series) => series.marks);
  const points = axes.series.filter((series) => !series.level).flatMap((series) => series.marks);
  const spread = marks.flatMap((m) => [m.y, m.low ?? m.y, m.high ?? m.y]);
  if (axes.one) spread.push(1);
  let across = extent((points.length ? points : marks).map((m) => m.x), false);
  let up = extent(spread, axes.from_zero);
  if (axes.diagonal) across = up = extent([...spread, ...points.map((m) => m.x)], false);
  const levels = ticks(...up, 5);
  const left = 30 + 7 * Math.max(...levels.map((tick) => String(tick).length));
  const x = scale(across, [left, width - right]), y = scale(up, [height - bottom, top]);
  for (const tick of levels) {
    plot.line(left, y(tick), width - right, y(tick), { class: "grid" });
    plot.text(left - 6, y(tick) + 4, String(tick), { class: "tick", "text-anchor": "end" });
  }
  const whole = points.length && points.every((m) => Number.isInteger(m.x)) && across[1] - across[0] < 25;
  const marked = whole
    ? [...new Set(points.map((m) => m.x))].sort((a, b) => a - b)
    : ticks(...across, Math.floor(width / 90));
  for (const tick of marked) {
    plot.line(x(tick), height - bottom, x(tick), height - bottom + 4, { class: "axis" });
    plot.text(x(tick), height - bottom + 17, String(tick), { class: "tick", "text-anchor": "middle" });
  }
  plot.line(left, height - bottom, width - right, height - bottom, { class: "axis" });
  plot.text((left + width - right) / 2, height - 8, axes.x, { class: "name", "text-anchor": "middle" });
  if (axes.y) plot.text(0, 0, axes.y, { class: "name", "text-anchor": "middle", transform: `translate(12 ${(top + height - bottom) / 2}) rotate(-90)` });
  if (axes.one) plot.line(left, y(1), width - right, y(1), { class: "one" });
  if (axes.diagonal) plot.line(x(up[0]), y(up[0]), x(up[1]), y(up[1]), { class: "one" });
  for (const series of axes.series) {
    const own = series.line === null ? null : look(series.line);
    if (series.level) {
      const m = series.marks[0];
      plot.line(left, y(m.y), width - right, y(m.y), { stroke: own ? own.colour : "var(--muted)", class: "level" });
      plot.place(width - right - 4, y(m.y), [series.name, `${number(m.y)}`]);
      continue;
    }
    const of = (m) => own ?? series.look ?? rows[m.row].look;
    if (joined && series.marks.length > 1) {
      const path = series.marks.map((m) => `${x(m.x)},${y(m.y)}`).join(" ");
      plot.add(s("polyline", { points: path, fill: "none", stroke: of(series.marks[0]).colour, "stroke-width": 2, "stroke-dasharray": of(series.marks[0]).dash }));
    }
    for (const m of series.marks) {
      const { colour, shape: kind } = of(m);
      if (m.low !== null) {
        plot.line(x(m.x), y(m.low), x(m.x), y(m.high), { stroke: colour, "stroke-width": 1.5 });
        for (const end of [m.low, m.high])
          plot.line(x(m.x) - 4, y(end), x(m.x) + 4, y(end), { stroke: colour, "stroke-width": 1.5 });
      }
      if (series.best !== null && series.best === m.place) plot.add(s("circle", { cx: x(m.x), cy: y(m.y), r: 9, fill: "none", stroke: colour, "stroke-width": 1.8 }));
      if (!series.dense) plot.add(shape(kind, x(m.x), y(m.y), 4.5, { fill: colour, class: "mark" }));
      plot.place(x(m.x), y(m.y), [joined ? series.name : rows[m.row].name, `${axes.x}: ${number(m.x, series.dense ? 2 : whole ? 0 : 2)}`,
        `${axes.title || axes.y}: ${number(m.y)}${axes.unit}`,
        ...(m.low === null ? [] : [`bar: ${between(m.low, m.high)}`])]);
    }
  }
  return plot.finish();
}

// Bars of parts, one a row.
function parts(axes, rows, width) {
  const shownRows = [...new Set(axes.series.flatMap((series) => series.marks.map((m) => m.row)))];
  const step = 40, top = 4, bottom = 42;
  const plot = new Plot(width, top + shownRows.length * step + bottom, axes.x);
  const total = (row) => axes.series.reduce((sum, series) => sum + (series.marks.find((m) => m.row === row)?.y ?? 0), 0);
  const far = Math.max(...shownRows.map(total));
  const x = scale([0, far], [8, width - 60]);
  const floor = plot.height - bottom;
  for (const tick of ticks(0, far, Math.floor(width / 90))) {
    plot.line(x(tick), top, x(tick), floor, { class: "grid" });
    plot.text(x(tick), floor + 16, String(tick), { class: "tick", "text-anchor": "middle" });
  }
  plot.text((width - 52) / 2, floor + 36, axes.x, { class: "name", "text-anchor": "middle" });
  shownRows.forEach((row, i) => {
    const y = top + i * step;
    plot.text(8, y + 13, rows[row].name.slice(0, Math.floor((width - 20) / 6.4)), { class: "label halo" });
    let start = 0;
    axes.series.forEach((series) => {
      const m = series.marks.find((mark) => mark.row === row);
      if (!m) return;
      const wide = Math.max(0, x(start + m.y) - x(start));
      plot.add(s("rect", { x: x(start), y: y + 18, width: wide, height: 16, fill: `var(--part${series.line})`, class: "bar" }));
      plot.place(x(start + m.y / 2), y + 26, [rows[row].name, `${series.name}: ${number(m.y, 2)} ms`, `${number((100 * m.y) / total(row), 1)} % of the round`]);
      start += m.y;
    });
    plot.text(x(start) + 6, y + 30, `${number(start, 1)} ms`, { class: "value" });
  });
  return plot.finish();
}

const tip = {
  box: null,
  show(lines, x, y) {
    this.box ??= document.body.appendChild(h("div", { id: "tip", role: "status", "aria-live": "polite" }));
    this.box.replaceChildren(...lines.map((line, i) => h(i ? "div" : "b", {}, line)));
    this.box.hidden = false;
    const { width, height } = this.box.getBoundingClientRect();
    const left = Math.min(Math.max(8, x + 14), innerWidth - width - 8);
    const above = y - height - 12;
    this.box.style.left = `${left}px`;
    this.box.style.top = `${above > 8 ? above : y + 16}px`;
  },
  hide() { if (this.box) this.box.hidden = true; },
};

// What a word means, on hover and on focus.
function term(name, meaning, label) {
  const made = h("button", { type: "button", class: "term", "aria-label": `${label ?? name}: ${meaning}` }, label ?? name);
  const show = () => { const box = made.getBoundingClientRect(); tip.show([label ?? name, meaning], box.left, box.top); };
  for (const event of ["pointerenter", "focus", "click"]) made.addEventListener(event, show);
  for (const event of ["pointerleave", "blur"]) made.addEventListener(event, () => tip.hide());
  return made;
}
