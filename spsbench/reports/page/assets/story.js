// A round in words, with what was drafted in it and what became of that.

// The node that kept token i of a round came from; of a chain that is i.
const nodeAt = (step, i) => (step.tree ? step.tree[1][i] : i);
const named = (text) => `“${text.replaceAll("\n", "⏎")}”`;
const chance = (law) => (law[1] > 0 ? Math.min(1, law[2] / law[1]) : 1);
const isFull = (step) => (step.tree ? step.tree[3].at(-1) === 0 : step.accepted === step.drafted);

function tell(viewer, step, reached, end) {
  const { main, beside, round } = viewer;
  const from = main.begins[round].token, out = main.tokens.slice(from, from + step.emitted), origins = main.origins.slice(from, from + step.emitted);
  const shown = step.tree ? step.accepted : step.drafted, chips = [];
  for (let i = 0; i < shown; i++) chips.push(chip(step, i, out));
  const last = origins.length - 1;
  if (last >= 0 && origins[last] !== "accepted")
    chips.push(h("span", { class: `draft ${origins[last]}` }, h("b", {}, out[last].replaceAll("\n", "⏎") || "■"), h("small", {}, origins[last])));
  const race = beside ? ` By then, ${number(end * 1e3, 0)} ms after the start, ${main.name} has ${from + step.emitted} tokens and ${beside.name} ${reached[1] < 0 ? 0 : beside.begins[reached[1]].token + beside.steps[reached[1]].emitted}.` : "";
  const told = `${summary(step)} ${step.emitted} token${step.emitted === 1 ? "" : "s"} in ${number(step.seconds * 1e3, 2)} ms.${race}`;
  return [h("p", {}, told), step.tree ? h("div", { class: "tree scrolls", tabindex: 0, role: "region", "aria-label": "The tree of this round" }, drawTree(step, out)) : null,
    h("div", { class: "drafts" }, ...chips)].filter(Boolean);
}

function chip(step, i, out) {
  const law = step.laws[nodeAt(step, i)];
  const fate = i < step.accepted ? "accepted" : i === step.accepted && step.tested !== -1 ? "rejected" : "unseen";
  const word = law ? law[0] : i < step.accepted ? out[i] ?? "cut" : "?";
  return h("span", { class: `draft ${fate}` }, h("b", {}, word.replaceAll("\n", "⏎") || "·"),
    h("small", {}, fate === "accepted" ? "✓ accepted" : fate === "rejected" ? "✗ rejected" : "not tested"),
    law && fate !== "unseen" ? h("small", {}, `p ${number(law[1], 3)} · q ${number(law[2], 3)}${step.tree ? "" : ` · chance ${number(chance(law), 2)}`}`) : null);
}

function summary(step) {
  if (!step.drafted) return "Nothing was drafted: one pass of the target, one token.";
  if (step.tree) {
    const kept = step.accepted ? `${step.accepted} ${step.accepted === 1 ? "was" : "were"} accepted along one path` : "None was accepted";
    return `The drafter guessed a tree of ${step.drafted} tokens, up to ${step.tree[0]} deep; the target scored all of them in one pass. ${kept}, `
      + (isFull(step) ? "to a leaf, so the target's next token came for free." : "all children of its end were rejected, and a token of the target takes its place.");
  }
  const guessed = `The draft model guessed ${step.drafted} token${step.drafted > 1 ? "s" : ""}; the target scored them in one pass. `;
  if (isFull(step)) return `${guessed}All were accepted, and the target's next token came for free.`;
  if (step.tested === -1) return `${guessed}${step.accepted} were accepted.`;
  return `${guessed}${step.accepted ? `${step.accepted} accepted, the next` : "The first"} was rejected, and a token of the target takes its place.`;
}
