"use strict";
// Elements, numbers, scales and shapes of the viewer.
// Everything is made of elements and text nodes; no text ever becomes markup.

const NS = "http://www.w3.org/2000/svg";

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

function scale([low, high], [from, to]) {
  return (value) => from + ((value - low) / (high - low)) * (to - from);
}

function shape(kind, x, y, r, attributes) {
  const points = {
    square: [[-r, -r], [r, -r], [r, r], [-r, r]],
    cross: [[-r, -r], [0, -r / 3], [r, -r], [r / 3, 0], [r, r], [0, r / 3], [-r, r], [-r / 3, 0]],
  }[kind];
  if (!points) return s("circle", { cx: x, cy: y, r, ...attributes });
  const path = points.map(([dx, dy]) => `${x + dx},${y + dy}`).join(" ");
  return s("polygon", { points: path, ...attributes });
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
