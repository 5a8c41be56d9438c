// Everything is drawn from the data in this file; nothing is fetched.
const data = JSON.parse(document.getElementById("data").textContent);

for (const exhibit of data.exhibits) for (const axes of exhibit.axes) for (const series of axes.series)
  series.marks = series.marks.map(([row, x, y, low, high], place) => ({ row, x, y, low, high, place }));

// A colour and a mark for each method; ArS is the grey circle.
(() => {
  const keys = [];
  for (const row of data.rows) {
    row.key = row.method;
    row.work = [row.run, row.task, row.setting].join(", ");
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

if (data.rows.length) {
  let exhibits = null;
  const update = () => {
    exhibits.draw();
    document.querySelectorAll("tr[data-row]").forEach((line) => { line.hidden = !filters.shows(+line.dataset.row); });
    const found = document.querySelector("#latency .percentiles");
    if (found) found.replaceWith(percentiles(data, filters));
  };
  const filters = new Filters(data.rows, () => update());
  const form = filters.element();
  if (form) document.getElementById("filters").append(form);
  exhibits = new Exhibits(data, filters, document.getElementById("exhibits"));
  document.querySelector("#latency .numbers")?.before(percentiles(data, filters));
  const beside = pairings(data);
  document.querySelectorAll("tr[data-row]").forEach((line) => { line.hidden = !filters.shows(+line.dataset.row); });
  if (beside) document.getElementById("pairings").append(beside);
}
if (data.traces.length) new Viewer(data, document.getElementById("viewer"));
document.documentElement.dataset.ready = "yes";
