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
      plot.place(width - right - 4, y(m.y), [series.name, `${number(m.y)}`, ...(m.kind ? [KINDS[m.kind]] : [])]);
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
      if (!series.dense) plot.add(stamp(m.kind, kind, x(m.x), y(m.y), 4.5, colour));
      plot.place(x(m.x), y(m.y), [joined ? series.name : rows[m.row].name, ...(m.kind ? [KINDS[m.kind]] : []), `${axes.x}: ${number(m.x, series.dense ? 2 : whole ? 0 : 2)}`,
        `${axes.title || axes.y}: ${number(m.y)}${axes.unit}`,
        ...(m.low === null ? [] : [`bar: ${between(m.low, m.high)}`])]);
    }
  }
  return plot.finish();
}
