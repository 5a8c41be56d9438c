// Rows one below the other: name and value above, interval below.
function forest(axes, rows, width) {
  const marks = axes.series.flatMap((series) => series.marks);
  const step = 38, line = 14, top = 6, bottom = 26;
  const drawn = marks.map((m) => {
    const row = rows[m.row];
    const value = `${number(m.y, axes.digits)}${axes.unit}`;
    const full = m.kind === "paper" ? `Chinchilla, ${row.key}: ${row.name}` : row.name;
    const room = Math.max(8, Math.floor((width - 16) / 6.4) - value.length - 2);
    return { row, value, full, lines: wrapped(full, room) };
  });
  const tall = drawn.reduce((sum, { lines }) => sum + step + line * (lines.length - 1), 0);
  const plot = new Plot(width, top + tall + bottom, axes.title);
  const values = marks.flatMap((m) => [m.y, m.low ?? m.y, m.high ?? m.y]);
  const lines = [[axes.one, 1], [axes.zero, 0]].filter(([drawn]) => drawn).map(([, at]) => at);
  values.push(...lines);
  const x = scale(extent(values, false), [8, width - 8]);
  const floor = plot.height - bottom;
  for (const tick of ticks(...extent(values, false), Math.floor(width / 80))) {
    plot.line(x(tick), top, x(tick), floor, { class: "grid" });
    plot.text(x(tick), floor + 16, String(tick), { class: "tick", "text-anchor": "middle" });
  }
  for (const at of lines) plot.line(x(at), top, x(at), floor, { class: "one" });
  let start = top;
  marks.forEach((m, i) => {
    const { row, value, full, lines: name } = drawn[i];
    const y = start + 26 + line * (name.length - 1);
    const { colour, shape: kind } = row.look;
    name.forEach((words, at) => plot.text(8, start + 15 + line * at, words, { class: m.kind === "paper" ? "label halo muted" : "label halo" }));
    start += step + line * (name.length - 1);
    plot.text(width - 8, y - 11, value, { class: m.kind === "paper" ? "value halo muted" : "value halo", "text-anchor": "end" });
    if (m.low !== null) {
      plot.line(x(m.low), y, x(m.high), y, { stroke: colour, "stroke-width": 3, "stroke-linecap": "round", opacity: 0.55 });
    }
    plot.add(stamp(m.kind, kind, x(m.y), y, 5, colour));
    plot.place(x(m.y), y, [full, `${axes.title}: ${value}`, ...(m.kind ? [KINDS[m.kind]] : []),
      ...(m.kind === "paper" ? [] : [`95 % interval: ${between(m.low, m.high, axes.digits)}`, `${row.n} generations`])]);
  });
  return plot.finish();
}

// Bars of parts, one a row.
function parts(axes, rows, width) {
  const shownRows = [...new Set(axes.series.flatMap((series) => series.marks.map((m) => m.row)))];
  const step = 40, line = 14, top = 4, bottom = 42;
  const room = Math.max(8, Math.floor((width - 20) / 6.4));
  const names = shownRows.map((row) => wrapped(rows[row].name, room));
  const tall = names.reduce((sum, lines) => sum + step + line * (lines.length - 1), 0);
  const plot = new Plot(width, top + tall + bottom, axes.x);
  const total = (row) => axes.series.reduce((sum, series) => sum + (series.marks.find((m) => m.row === row)?.y ?? 0), 0);
  const far = Math.max(...shownRows.map(total));
  const x = scale([0, far], [8, width - 60]);
  const floor = plot.height - bottom;
  for (const tick of ticks(0, far, Math.floor(width / 90))) {
    plot.line(x(tick), top, x(tick), floor, { class: "grid" });
    plot.text(x(tick), floor + 16, String(tick), { class: "tick", "text-anchor": "middle" });
  }
  plot.text((width - 52) / 2, floor + 36, axes.x, { class: "name", "text-anchor": "middle" });
  let below = top;
  shownRows.forEach((row, i) => {
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
    plot.text(x(start) + 6, y + 30, `${number(start, 1)} ms`, { class: "value" });
  });
  return plot.finish();
}
