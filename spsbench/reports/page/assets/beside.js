// The same configuration in several runs, on the prompts that both have.
function pairings(data, filters) {
  const found = data.pairings.filter((each) => filters.shows(each.row));
  if (!found.length) return null;
  const metrics = [...new Set(data.pairings.flatMap((each) => each.quality.map(([name]) => name)))];
  const cell = (e, digits, unit) => e ? `${number(e[0], digits)}${unit} (${between(e[1], e[2], digits)})` : "n/a";
  return h("div", { class: "exhibit" }, h("h2", {}, "Runs compared"),
    h("p", { class: "says" }, `Against the first run, ${found[0].base}: paired by prompt and repeat, so that differences between prompts cancel. `
      + "Above 1 the later run takes less time a token. Intervals are over prompts; they do not include how a machine varies from day to day."),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Paired differences" }, h("table", {},
      h("caption", {}, "Paired differences"),
      h("thead", {}, h("tr", {}, ...["configuration", "run", "pairs", "times as fast", "tau, difference", ...metrics.map((name) => `${name}, difference`)].map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, ...found.map((each) => h("tr", {}, h("th", { scope: "row" }, each.name), h("th", { scope: "row" }, each.run),
        h("td", {}, String(each.shared)), h("td", {}, cell(each.faster, 3, "x")), h("td", {}, cell(each.tau, 3, "")), ...metrics.map((name) => {
          const own = each.quality.find(([metric]) => metric === name);
          return h("td", {}, own ? `${cell(own[1], 4, "")}: ${own[2]}` : "n/a");
        })))))));
}

// Of how the time varies: the percentiles themselves.
function percentiles(data, filters) {
  const lines = data.rows.map((row, i) => [row, i]).filter(([row, i]) => row.percentiles && filters.shows(i));
  return h("div", { class: "scroll percentiles" }, h("table", {}, h("caption", {}, "ms a token, means of generations"),
    h("thead", {}, h("tr", {}, ...["configuration", "P50", "P90", "P99"].map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, ...lines.flatMap(([row], i) => [
      i && lines[i - 1][0].work === row.work ? null : h("tr", {}, h("th", { scope: "rowgroup", colspan: 4, class: "left work" }, row.work)),
      h("tr", {}, h("th", { scope: "row" }, row.method), ...["p50", "p90", "p99"].map((name) => h("td", {}, number(row.percentiles[name], 2)))),
    ].filter(Boolean)))));
}
