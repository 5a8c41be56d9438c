// Configurations below the heading of their task and setting: a row each, in it every figure with
// its interval, its value and the paper's.
function forest(panels, rows, width) {
  const works = new Map();
  for (const axes of panels) for (const m of axes.series.flatMap((series) => series.marks)) {
    const work = rows[m.row].work;
    if (!works.has(work)) works.set(work, new Set());
    works.get(work).add(m.row);
  }
  const scales = panels.map((axes) => {
    const values = axes.series.flatMap((series) => series.marks).flatMap((m) => [m.y, m.low ?? m.y, m.high ?? m.y]);
    const at = [[axes.one, 1], [axes.zero, 0]].filter(([drawn]) => drawn).map(([, value]) => value);
    return { at, range: extent([...values, ...at], false) };
  });
  return [...works].map(([work, own]) => {
    const drawn = panels.map((axes, i) => ({ ...axes, ...scales[i] })).filter((axes) => axes.series.some((series) => series.marks.some((m) => own.has(m.row))));
    return h("figure", { class: "group" }, h("h3", {}, work || "all"), group(drawn, [...own].sort((a, b) => a - b), rows, width, work));
  });
}

// The rows of one task and setting. Figures stand below their titles where all fit beside each
// other; else each has its own title, and the figures of a row take several lines.
function group(panels, own, rows, width, work) {
  const beside = width >= 640, left = beside ? 158 : 0, line = 14;
  const shown = (axes, row) => axes.series.flatMap((series) => series.marks).filter((m) => m.row === row);
  const texts = panels.flatMap((axes) => own.map((row) => shown(axes, row).map((m) => label(m, axes)).join("  ").length));
  const pitch = Math.max(138, 22 + 7.2 * Math.max(...texts)); // a value and the paper's stand on one line
  const fitting = Math.max(1, Math.min(panels.length, Math.floor((width - left) / pitch)));
  const per = Math.ceil(panels.length / Math.ceil(panels.length / fitting)); // lines of a row are filled evenly
  const folded = per < panels.length || !beside, wide = Math.min((width - left) / per, 420), inner = wide - 22;
  const fit = (words, room) => wrapped(words, Math.max(8, Math.floor(room / 6.6)));
  const titles = panels.map((axes) => fit(axes.title, inner));
  const most = Math.max(...titles.map((lines) => lines.length));
  const head = folded ? 0 : line * most + 8;
  const drawn = own.map((row) => {
    const cells = panels.map((axes, i) => ({ axes, i, marks: shown(axes, row) }));
    const name = fit(rows[row].method, beside ? left - 12 : width - 16);
    return { row, name, cells: beside ? cells : cells.filter(({ marks }) => marks.length) };
  });
  const step = folded ? 20 + line * most + 34 : 46;
  const tall = ({ name, cells }) => (beside ? Math.max(step * Math.ceil(cells.length / per), line * name.length + 12)
    : line * name.length + 6 + step * Math.ceil(cells.length / per)) + (folded ? 8 : 0);
  const foot = folded ? 0 : 18;
  const plot = new Plot(width, head + drawn.reduce((sum, each) => sum + tall(each), 0) + foot, work || "configurations");
  const words = (lines, x, y, kind) => lines.forEach((text, at) => plot.text(x, y + line * at, text, { class: kind }));
  const axis = (i, x, from, top, floor) => {
    for (const tick of ticks(...panels[i].range, 3)) {
      plot.line(from + x(tick), top, from + x(tick), floor, { class: "grid" });
      plot.text(from + x(tick), floor + 13, String(tick), { class: "tick", "text-anchor": "middle" });
    }
    for (const value of panels[i].at) plot.line(from + x(value), top, from + x(value), floor, { class: "one" });
  };
  const across = panels.map(({ range }) => scale(range, [6, inner - 6]));
  const ground = plot.height - foot;
  if (!folded) panels.forEach((axes, i) => {
    words(titles[i], left + wide * i, 12 + line * (most - titles[i].length), "name");
    axis(i, across[i], left + wide * i, head, ground);
  });
  let top = head;
  for (const each of drawn) {
    const look = rows[each.row].look;
    plot.line(0, top, width, top, { class: "grid" });
    plot.add(shape(look.shape, 6, top + 12, 4, { fill: look.colour }));
    words(each.name, 16, top + 16, "label");
    const below = top + (beside ? 0 : line * each.name.length + 6);
    each.cells.forEach(({ axes, i, marks }, place) => {
      if (!marks.length) return; // its place stays empty, so that a column has one figure
      const from = left + wide * (place % per), start = below + step * Math.floor(place / per);
      const under = folded ? line * most + 2 : 0;
      if (folded) {
        words(titles[i], from, start + 14 + line * (most - titles[i].length), "name");
        axis(i, across[i], from, start + under + 22, start + under + 38);
      }
      figures(plot, axes, marks, rows[each.row], across[i], from, start + under, inner);
    });
    top += tall(each);
  }
  return plot.finish();
}

// The text of a value; the paper's is named.
function label(m, axes) {
  return `${m.kind === "paper" ? "paper " : ""}${number(m.y, axes.digits)}${axes.unit}`;
}

// One figure of a row: its value and the paper's on one line, below it their marks on one scale.
function figures(plot, axes, marks, row, x, from, top, inner) {
  for (const m of marks) {
    const paper = m.kind === "paper", y = top + 30, value = `${number(m.y, axes.digits)}${axes.unit}`;
    const { colour, shape: kind } = row.look;
    if (paper) plot.text(from + inner, top + 16, label(m, axes), { class: "value halo muted", "text-anchor": "end" });
    else plot.text(from, top + 16, value, { class: "value halo" });
    if (m.low !== null) plot.line(from + x(m.low), y, from + x(m.high), y, { stroke: colour, "stroke-width": 3, "stroke-linecap": "round", opacity: 0.55 });
    plot.add(stamp(m.kind, kind, from + x(m.y), y, 5, colour));
    plot.place(from + x(m.y), y, [row.name, `${axes.title}: ${value}`, ...(m.kind ? [KINDS[m.kind]] : []),
      ...(paper ? [] : [`95 % interval: ${between(m.low, m.high, axes.digits)}`, `${row.n} generations`])]);
  }
}

// Bars of parts, one a row, below the heading of its task and setting.
function parts(axes, rows, width) {
  const shownRows = [...new Set(axes.series.flatMap((series) => series.marks.map((m) => m.row)))];
  const step = 40, line = 14, top = 4, bottom = 42;
  const room = Math.max(8, Math.floor((width - 20) / 6.4));
  const names = shownRows.map((row) => wrapped(rows[row].method, room));
  const heads = shownRows.map((row, i) => i && rows[shownRows[i - 1]].work === rows[row].work ? [] : wrapped(rows[row].work, room));
  const tall = names.reduce((sum, lines, i) => sum + step + line * (lines.length - 1) + (line + 4) * heads[i].length, 0);
  const plot = new Plot(width, top + tall + bottom, axes.x);
  const total = (row) => axes.series.reduce((sum, series) => sum + (series.marks.find((m) => m.row === row)?.y ?? 0), 0);
  const far = Math.max(...shownRows.map(total));
  const sums = shownRows.map((row) => `${number(total(row), 1)} ms`);
  const end = width - 14 - 7.5 * Math.max(...sums.map((sum) => sum.length)); // of the longest bar: its sum stands behind it
  const x = scale([0, far], [8, end]);
  const floor = plot.height - bottom;
  for (const tick of ticks(0, far, Math.floor(width / 90))) {
    plot.line(x(tick), top, x(tick), floor, { class: "grid" });
    plot.text(x(tick), floor + 16, String(tick), { class: "tick", "text-anchor": "middle" });
  }
  plot.text((8 + end) / 2, floor + 36, axes.x, { class: "name", "text-anchor": "middle" });
  let below = top;
  shownRows.forEach((row, i) => {
    heads[i].forEach((words, at) => plot.text(8, below + 13 + (line + 4) * at, words, { class: "value halo" }));
    below += (line + 4) * heads[i].length;
    names[i].forEach((words, at) => plot.text(8, below + 13 + line * at, words, { class: "label halo" }));
    const y = below + line * (names[i].length - 1);
    below += step + line * (names[i].length - 1);
    let start = 0;
    axes.series.forEach((series) => {
      const m = series.marks.find((mark) => mark.row === row);
      if (!m) return;
      const wide = Math.max(0, x(start + m.y) - x(start));
      plot.add(s("rect", { x: x(start), y: y + 18, width: wide, height: 16, fill: `var(--part${series.line})`, class: "bar" }));
      plot.place(x(start + m.y / 2), y + 26, [rows[row].name, `${series.name}: ${number(m.y, 2)} ms`, `${number((100 * m.y) / total(row), 1)} % of the round`]);
      start += m.y;
    });
    plot.text(x(start) + 6, y + 30, sums[i], { class: "value" });
  });
  return plot.finish();
}
