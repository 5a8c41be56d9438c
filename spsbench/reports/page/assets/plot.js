// Plots are SVG: they scale, print, follow the colours of the page and can be read out.
// A name in lines of at most `room` characters, parted at its spaces where it has some.
function wrapped(name, room) {
  const lines = [];
  for (const word of name.split(" ")) {
    const last = lines.length - 1;
    if (last >= 0 && lines[last].length + 1 + word.length <= room) { lines[last] += ` ${word}`; continue; }
    for (let at = 0; at === 0 || at < word.length; at += room) lines.push(word.slice(at, at + room));
  }
  return lines;
}

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

// A mark in the way of its kind: under load it is open, the paper's is dotted.
function stamp(kind, shapeOf, x, y, r, colour) {
  if (kind === "loaded") return shape(shapeOf, x, y, r, { class: "mark open", stroke: colour });
  if (kind === "paper") return shape("diamond", x, y, r, { class: "mark paper" });
  return shape(shapeOf, x, y, r, { fill: colour, class: "mark" });
}

const KINDS = { loaded: "timed under load", paper: "the paper's: Chinchilla, another machine" };
