// A drafted tree with the path that was accepted. Without recorded laws only the children along that path
// are known: the others were drafted, but not where; then their number is given.

// Nodes {parent, word, fate, law}; parents stand before their children.
function nodesOf(step, out) {
  const [, path, siblings, offered] = step.tree;
  if (step.parents.length) {
    const kept = new Map(path.map((node, i) => [node, i]));
    const looked = new Set();
    [-1, ...path].forEach((parent, i) => {
      for (const [node, above] of step.parents.entries()) if (above === parent && !(i < path.length && node > path[i])) looked.add(node);
    });
    return step.parents.map((parent, node) => ({
      parent, word: step.laws[node]?.[0] ?? "?", law: step.laws[node],
      fate: kept.has(node) ? "accepted" : looked.has(node) ? "rejected" : "unseen",
    }));
  }
  const nodes = [];
  let above = -1;
  offered.forEach((count, level) => {
    let next = above;
    for (let i = 0; i < count; i++) {
      const chosen = siblings[level];
      if (i === chosen) next = nodes.length;
      const fate = i === chosen ? "accepted" : chosen === undefined || i < chosen ? "rejected" : "unseen";
      nodes.push({ parent: above, word: i === chosen ? out[level] ?? "cut" : "?", fate });
    }
    above = next;
  });
  return nodes;
}

function drawTree(step, out) {
  const nodes = nodesOf(step, out), wide = 104, tall = 26;
  const children = new Map();
  nodes.forEach((node, i) => children.set(node.parent, [...(children.get(node.parent) ?? []), i]));
  let leaves = 0, deepest = 0;
  const place = (i, depth) => {
    deepest = Math.max(deepest, depth);
    const own = (children.get(i) ?? []).map((child) => place(child, depth + 1));
    const at = { x: 14 + depth * wide, y: own.length ? own.reduce((sum, each) => sum + each.y, 0) / own.length : 16 + tall * leaves++ };
    if (i >= 0) Object.assign(nodes[i], at);
    return at;
  };
  const root = place(-1, 0), more = step.drafted - nodes.length;
  const width = 14 + deepest * wide + 110, height = 12 + tall * Math.max(1, leaves) + (more > 0 ? 20 : 0);
  const kept = nodes.filter((node) => node.fate === "accepted").map((node) => named(node.word)).join(", ");
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "tree",
    "aria-label": `A tree of ${step.drafted} drafted tokens; accepted: ${kept || "none"}.` });
  for (const node of nodes) {
    const from = node.parent < 0 ? root : nodes[node.parent], middle = (from.x + node.x) / 2;
    svg.append(s("path", { d: `M${from.x},${from.y} C${middle},${from.y} ${middle},${node.y} ${node.x},${node.y}`, class: `edge ${node.fate}` }));
  }
  svg.append(s("circle", { cx: root.x, cy: root.y, r: 5, class: "node root" }));
  for (const node of nodes) {
    const word = node.word.replaceAll("\n", "⏎") || "·";
    const group = s("g", { class: `node ${node.fate}` }, shape({ accepted: "circle", rejected: "cross", unseen: "square" }[node.fate], node.x, node.y, 4.5, {}),
      s("text", { x: node.x + 9, y: node.y + 4, class: "halo" }, word.length > 11 ? `${word.slice(0, 10)}…` : word));
    group.addEventListener("pointerenter", () => { const box = group.getBoundingClientRect(); tip.show([named(node.word), { accepted: "accepted", rejected: "rejected", unseen: "not tested" }[node.fate],
      ...(node.law ? [`draft p ${number(node.law[1], 4)}, target q ${number(node.law[2], 4)}`] : [])], box.left, box.top); });
    group.addEventListener("pointerleave", () => tip.hide());
    svg.append(group);
  }
  if (more > 0) svg.append(s("text", { x: 14, y: height - 5, class: "tick" }, `${more} more below branches that were not taken; --record laws records where`));
  return svg;
}
