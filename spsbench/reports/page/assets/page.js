// Everything is drawn from the data in this file; nothing is fetched.
const data = JSON.parse(document.getElementById("data").textContent);

for (const exhibit of data.exhibits) for (const axes of exhibit.axes) for (const series of axes.series)
  series.marks = series.marks.map(([row, x, y, low, high, kind], place) => ({ row, x, y, low, high, kind, place }));

// A colour and a mark for each method; ArS is the grey circle.
(() => {
  const keys = [];
  for (const row of data.rows) {
    row.key = row.method;
    if (row.k !== 0 && !keys.includes(row.key)) keys.push(row.key);
    row.look = row.k === 0 ? { colour: "var(--muted)", shape: "circle" }
      : { colour: `var(--c${keys.indexOf(row.key) % COLOURS})`, shape: SHAPES[(keys.indexOf(row.key) + 1) % SHAPES.length] };
  }
})();

(() => {
  const stored = document.documentElement;
  const dark = () => stored.dataset.theme ? stored.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const button = h("button", { type: "button", class: "theme", onclick: () => { stored.dataset.theme = dark() ? "light" : "dark"; } }, "Light or dark");
  document.querySelector("header").append(button);
})();

const filters = new Filters(data.rows, () => update());
if (data.exhibits.some((exhibit) => exhibit.axes.some((axes) => axes.series.some((series) => series.marks.some((m) => m.kind === "paper"))))) filters.paper = true;
const form = filters.element();
if (form) document.getElementById("filters").append(form);
const exhibits = data.exhibits.length ? new Exhibits(data, filters, document.getElementById("exhibits")) : null;
document.querySelector("#latency .numbers")?.before(percentiles(data, filters));
const viewer = data.traces.length ? new Viewer(data, filters, document.getElementById("viewer")) : null;

// Everything that a filter reaches.
function update() {
  exhibits?.draw();
  document.querySelectorAll("tr[data-row]").forEach((line) => { line.hidden = !filters.shows(+line.dataset.row, line.classList.contains("paper") ? "paper" : ""); });
  document.querySelector("#latency .percentiles")?.replaceWith(percentiles(data, filters));
  document.getElementById("pairings")?.replaceChildren(...[pairings(data, filters)].filter(Boolean));
  viewer?.choose();
}
update();
document.documentElement.dataset.ready = "yes";
