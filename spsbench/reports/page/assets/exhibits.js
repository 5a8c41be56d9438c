// Figures with their definitions above and their numbers in a table below.
const LABELS = {
  speedup: "speed-up", answer_speedup: "answer speed-up", answer_ms: "answer ms", mean_token_time_ms: "ms/token", alpha: "α", alpha_at: "kept / tested", block_efficiency: "τ",
  efficiency: "τ / (K + 1)", loop_time_ms: "loop time", ttft_ms: "TTFT", draft_share: "draft", target_share: "target",
  verify_share: "verify", predicted_speedup: "predicted", predicted_ms: "predicted ms/token", predicted_tau: "predicted τ", sibling_at: "kept by sibling", horizon_time_ms: "time to N tokens", p50: "P50", p90: "P90", p99: "P99",
};
const DRAW = {
  curves: (axes, rows, width) => curves(axes, rows, width, true),
  scatter: (axes, rows, width) => curves(axes, rows, width, false),
  parts: (axes, rows, width) => parts(axes, rows, width),
};

class Exhibits {
  constructor(data, filters, root) {
    this.data = data;
    this.filters = filters;
    this.root = root;
    this.holders = data.exhibits.map((exhibit) => this.frame(exhibit));
    root.append(...this.holders.map((holder) => holder.section));
    new ResizeObserver(() => { if (root.clientWidth !== this.wide) this.draw(); }).observe(root);
  }

  frame(exhibit) {
    const terms = [...new Set(exhibit.terms)].filter((name) => this.data.definitions[name]);
    const holder = {
      exhibit, hidden: new Set(),
      panels: h("div", { class: `panels ${exhibit.kind}` }), legend: h("div", { class: "legend" }),
      table: h("details", { class: "numbers" }, h("summary", {}, "The numbers")),
    };
    holder.section = h("section", { class: exhibit.axes.length > 1 ? "exhibit" : "exhibit half", id: exhibit.id, "aria-labelledby": `${exhibit.id}-title` },
      h("h2", { id: `${exhibit.id}-title` }, exhibit.title), h("p", { class: "says" }, exhibit.says),
      h("p", { class: "terms" }, ...terms.map((name) => term(name, this.data.definitions[name], LABELS[name]))),
      holder.panels, holder.legend, holder.table);
    holder.table.addEventListener("toggle", () => this.fill(holder));
    return holder;
  }

  // The marks that the filters let through.
  shown(axes, kind) {
    const series = axes.series
      .map((each) => ({ ...each, marks: each.marks.filter((m) => this.filters.shows(m.row, m.kind)) }))
      .filter((each) => each.marks.length);
    return { ...axes, series: kind === "curves" ? this.dressed(series) : series };
  }

  // Lines of rows: the colour tells what differs more, task and setting or method; dashes the other.
  dressed(series) {
    const rows = series.map((each) => this.data.rows[each.marks[0].row] ?? { work: "", k: 0 });
    const works = [...new Set(rows.map((row) => row.work))], methods = [...new Set(rows.filter((row) => row.k !== 0).map((row) => row.key))];
    return series.map((each, i) => {
      if (each.line !== null) return each;
      const row = rows[i], work = works.indexOf(row.work), key = methods.indexOf(row.key);
      const own = methods.length > 1 ? { ...row.look, dash: [null, "7 3", "2 3", "9 3 2 3"][work % 4] } : { ...look(work), dash: row.k === 0 ? "6 4" : null };
      return { ...each, look: methods.length > 1 && key >= 0 ? { ...own, shape: SHAPES[key % SHAPES.length] } : own };
    });
  }

  draw() {
    this.wide = this.root.clientWidth;
    for (const holder of this.holders) {
      const all = holder.exhibit.axes.map((axes) => this.shown(axes, holder.exhibit.kind)).filter((axes) => axes.series.length);
      holder.section.hidden = !all.length;
      const named = all.map((axes) => ({ ...axes, series: axes.series.filter((each) => !holder.hidden.has(each.name)) }));
      const room = holder.panels.clientWidth || this.wide - 44;
      if (holder.exhibit.kind === "forest") {
        holder.panels.replaceChildren(...forest(all, this.data.rows, Math.max(room, 250)));
        holder.legend.replaceChildren();
        this.fill(holder);
        continue;
      }
      const columns = this.columns(all.length, room);
      holder.panels.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
      const width = Math.floor((room - (columns - 1) * 24) / columns);
      holder.panels.replaceChildren(...named.filter((axes) => axes.series.length).map((axes) => h("figure", {},
        axes.title ? h("figcaption", {}, axes.title) : null,
        DRAW[holder.exhibit.kind](axes, this.data.rows, Math.max(width, 250)))));
      this.legend(holder, all);
      this.fill(holder);
    }
  }

  columns(count, room) {
    return Math.max(1, Math.min(count, Math.floor((room + 24) / (340 + 24))));
  }

  legend(holder, all) {
    const kind = holder.exhibit.kind;
    if (kind === "scatter") {
      const methods = new Map(all.flatMap((axes) => axes.series.flatMap((each) => each.marks.map((m) => {
        const row = this.data.rows[m.row];
        return [row.key, row];
      }))));
      holder.legend.replaceChildren(...[...methods.values()].map((row) => h("span", { class: "entry" }, swatch(row.look), row.key)));
      return;
    }
    const seen = new Map(all.flatMap((axes) => axes.series.filter((each) => !each.level).map((each) => [each.name, each])));
    holder.legend.replaceChildren(...[...seen.values()].map((each) => {
      const own = kind === "parts" ? { colour: `var(--part${each.line})`, shape: "square" }
        : each.line === null ? each.look : look(each.line);
      const off = holder.hidden.has(each.name);
      return h("button", { type: "button", class: "entry", "aria-pressed": String(!off), onclick: () => {
        if (off) holder.hidden.delete(each.name); else holder.hidden.add(each.name);
        this.draw();
      } }, swatch(own), each.name);
    }));
  }

  fill(holder) {
    holder.table.querySelector(".scroll")?.remove();
    if (!holder.table.open) return;
    const { exhibit } = holder, flat = exhibit.kind === "forest" || exhibit.kind === "parts";
    const lines = exhibit.axes.map((axes) => this.shown(axes, exhibit.kind)).flatMap((axes) => axes.series.flatMap((each) => each.marks.map((m) =>
      [axes.title || axes.y || axes.x, exhibit.kind === "forest" ? `${this.data.rows[m.row].name}${m.kind ? ` (${KINDS[m.kind]})` : ""}` : exhibit.kind === "curves" ? each.name : `${this.data.rows[m.row].name}: ${each.name}`,
        ...(flat ? [] : [each.level ? "all" : number(m.x, Number.isInteger(m.x) ? 0 : 3)]), number(m.y, 4), number(m.low, 4), number(m.high, 4)])));
    const heads = ["figure", "configuration", ...(flat ? [] : ["x"]), "value", "low", "high"];
    holder.table.append(h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${exhibit.title}, numbers` }, h("table", {},
      h("caption", {}, exhibit.title), h("thead", {}, h("tr", {}, ...heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, ...lines.map((line) => h("tr", {}, ...line.map((cell, i) => h(i < 2 ? "th" : "td", i < 2 ? { scope: "row" } : {}, cell))))))));
  }
}

function swatch(own) {
  return s("svg", { width: 26, height: 16, viewBox: "-5 0 26 16", "aria-hidden": "true" },
    "dash" in own ? s("line", { x1: -5, x2: 21, y1: 8, y2: 8, stroke: own.colour, "stroke-width": 2, "stroke-dasharray": own.dash }) : null,
    shape(own.shape, 8, 8, 5, { fill: own.colour }));
}
