// Two texts token by token, the same tokens one above the other.
const AGAIN = 3; // tokens in a row that count as the same text again, once two texts differ
const LARGEST = 6e6; // products of lengths that are compared; beyond it only what is the same at first

// Pairs [i, j] of places with the same token, in order: a longest common subsequence, less the short
// runs that two different texts share by chance.
function matches(a, b) {
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  const made = Array.from({ length: start }, (_, i) => [i, i]);
  const n = a.length - start, m = b.length - start;
  if (!n || !m || n * m > LARGEST) return made;
  const best = new Uint16Array((n + 1) * (m + 1));
  for (let i = n - 1; i >= 0; i--) for (let j = m - 1; j >= 0; j--) {
    best[i * (m + 1) + j] = a[start + i] === b[start + j] ? best[(i + 1) * (m + 1) + j + 1] + 1
      : Math.max(best[(i + 1) * (m + 1) + j], best[i * (m + 1) + j + 1]);
  }
  let run = [];
  const keep = () => { if (run.length >= AGAIN) made.push(...run); run = []; };
  for (let i = 0, j = 0; i < n && j < m;) {
    if (a[start + i] === b[start + j]) run.push([start + i++, start + j++]);
    else {
      keep();
      if (best[(i + 1) * (m + 1) + j] >= best[i * (m + 1) + j + 1]) i++; else j++;
    }
  }
  keep();
  return made;
}

// Places of both, side by side: the same, different, or only in one (null in the other).
function aligned(a, b) {
  const made = [], same = matches(a, b);
  let i = 0, j = 0;
  for (const [p, q] of [...same, [a.length, b.length]]) {
    while (i < p || j < q) made.push([i < p ? i++ : null, j < q ? j++ : null, false]);
    if (p < a.length) { made.push([p, q, true]); i = p + 1; j = q + 1; }
  }
  return { pairs: made, same: same.length };
}

function together(traces, spans) {
  const [first, second] = traces, flat = spans.map((each) => each.flat());
  const { pairs, same } = aligned(first.tokens, second.tokens);
  const parted = pairs.findIndex(([, , alike]) => !alike);
  const told = parted < 0 ? `All ${same} tokens are the same.`
    : `${parted ? `The first ${parted} tokens are the same` : "They differ at once"}: at token ${parted + 1} ${first.name} has ${word(first, pairs[parted][0])}, ${second.name} ${word(second, pairs[parted][1])}. `
      + `${same} of ${Math.max(first.tokens.length, second.tokens.length)} tokens are aligned with an equal one. Greedy texts should be the same; sampled ones differ by design, since each method draws on its own.`;
  return h("article", { class: "pane together" }, h("h3", {}, `${first.name} above, ${second.name} below`), h("p", { class: "sum" }, told),
    h("div", { class: "text aligned" }, ...pairs.flatMap(([i, j, alike]) => {
      const cell = h("span", { class: alike ? "pair" : "pair parts" }, flat[0][i] ?? gap(), flat[1][j] ?? gap());
      return (first.tokens[i] ?? second.tokens[j] ?? "").includes("\n") ? [cell, h("br")] : [cell];
    })));
}

const gap = () => h("span", { class: "gap" }, "–");
const word = (trace, i) => (i === null ? "nothing" : named(trace.tokens[i]));
