// Rounds as a timeline: prefill, draft, target and verify, one lane a generation.
function lanes(viewer, shown) {
  const width = Math.max(280, viewer.wide - 34), lane = 42, left = 8;
  const far = Math.max(...shown.map((trace) => trace.total)) || 1;
  const x = scale([0, far], [left, width - 8]);
  const svg = s("svg", { width, height: shown.length * lane + 40, viewBox: `0 0 ${width} ${shown.length * lane + 40}`, role: "img", "aria-label": "Timeline of rounds: prefill, draft, target and verify" });
  for (const tick of ticks(0, far * 1e3, Math.floor(width / 110))) {
    svg.append(s("line", { x1: x(tick / 1e3), x2: x(tick / 1e3), y1: 0, y2: shown.length * lane, class: "grid" }),
      s("text", { x: x(tick / 1e3), y: shown.length * lane + 14, class: "tick", "text-anchor": tick ? "middle" : "start" }, `${tick} ms`));
  }
  viewer.blocks = shown.map((trace, n) => {
    const y = n * lane + 17;
    svg.append(s("text", { x: left, y: y - 4, class: "label halo" }, trace.name),
      s("rect", { x: x(0), y, width: x(trace.prefill) - x(0), height: 18, fill: "var(--prefill)", class: "bar" }));
    return trace.steps.map((step, round) => {
      const rest = Math.max(0, step.seconds - step.draft - step.target);
      let at = trace.begins[round].time;
      const bars = [step.draft, step.target, rest].map((seconds, i) => {
        const bar = s("rect", { x: x(at), y, width: Math.max(0, x(at + seconds) - x(at)), height: 18, fill: `var(--part${i})` });
        at += seconds;
        return bar;
      });
      const group = s("g", { class: "round" }, ...bars, s("rect", { x: x(trace.begins[round].time), y, width: Math.max(1, x(at) - x(trace.begins[round].time)), height: 18, class: "frame" }));
      group.addEventListener("click", () => { if (n === 0) viewer.go(round); });
      group.addEventListener("pointerenter", () => { const box = group.getBoundingClientRect(); tip.show([`${trace.name}, round ${round + 1}`, `draft ${number(step.draft * 1e3, 2)}, target ${number(step.target * 1e3, 2)}, verify ${number(rest * 1e3, 2)} ms`, `${step.emitted} tokens`], box.left, box.top); });
      group.addEventListener("pointerleave", () => tip.hide());
      svg.append(group);
      return group;
    });
  });
  viewer.cursor = s("line", { y1: 0, y2: shown.length * lane, class: "cursor" });
  viewer.x = x;
  svg.append(viewer.cursor);
  ["prefill", "draft", "target", "verify"].forEach((name, i) => {
    svg.append(s("rect", { x: left + i * 68, y: shown.length * lane + 24, width: 10, height: 10, fill: i ? `var(--part${i - 1})` : "var(--prefill)" }),
      s("text", { x: left + 15 + i * 68, y: shown.length * lane + 33, class: "tick" }, name));
  });
  viewer.timeline.replaceChildren(svg);
}
