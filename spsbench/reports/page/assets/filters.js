// Which rows are shown: by run, task, category, setting and method.
class Filters {
  constructor(rows, changed) {
    this.rows = rows;
    this.off = new Set();
    this.category = null; // null = all of them
    this.changed = changed;
    this.names = ["run", "task", "setting", "method"].filter((name) => this.values(name).length > 1);
    this.paper = null; // whether the paper's marks are shown; null = there are none
    this.categories = this.values("category").sort((a, b) => (b === null) - (a === null));
  }

  values(name) { return [...new Set(this.rows.map((row) => row[name]))]; }

  // Whether marks of a row are shown; those of none (-1) always.
  shows(index, kind = "") {
    const row = this.rows[index];
    if (!row) return true;
    if (kind === "paper" && !this.paper) return false;
    return row.category === this.category && this.names.every((name) => !this.off.has(`${name}\n${row[name]}`));
  }

  // Whether a generation is: its row is that of all categories.
  reads(trace) {
    const row = this.rows[trace.row];
    return !row || ((this.category === null || trace.category === this.category) && this.names.every((name) => !this.off.has(`${name}\n${row[name]}`)));
  }

  element() {
    const boxes = this.names.map((name) => h("fieldset", { "data-filter": name }, h("legend", {}, name),
      ...this.values(name).map((value) => {
        const input = h("input", { type: "checkbox", checked: true, onchange: () => {
          const key = `${name}\n${value}`;
          if (input.checked) this.off.delete(key); else this.off.add(key);
          this.changed();
        } });
        return h("label", { class: "chip" }, input, h("span", {}, value || "none"));
      })));
    if (this.categories.length > 1) {
      const select = h("select", { "aria-label": "category", onchange: () => { this.category = this.categories[+select.value]; this.changed(); } },
        ...this.categories.map((value, i) => h("option", { value: i }, value ?? "all of them")));
      boxes.push(h("fieldset", { "data-filter": "category" }, h("legend", {}, "category"), select));
    }
    if (this.paper !== null) {
      const input = h("input", { type: "checkbox", checked: this.paper, onchange: () => { this.paper = input.checked; this.changed(); } });
      boxes.push(h("fieldset", { "data-filter": "paper" }, h("legend", {}, "beside"), h("label", { class: "chip" }, input, h("span", {}, "the paper's"))));
    }
    return boxes.length ? h("form", { class: "filters", "aria-label": "Filters", onsubmit: (e) => e.preventDefault() }, ...boxes) : null;
  }
}
