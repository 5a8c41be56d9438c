// A generation token by token and round by round, beside another one of the same prompt.
const ORIGINS = {
  accepted: "drafted by the small model, and kept", recovered: "the target's own, after a rejection",
  bonus: "the target's own, for free after all drafts were kept", plain: "the target's own, nothing was drafted",
};
const LESSON = [
  "A language model writes one token at a time, and each costs a whole pass of a large model, the target. That is ArS: every bar of its timeline is one pass, one token.",
  "Speculative sampling (SpS) lets a small, fast draft model guess a few tokens ahead. The target then scores all the guesses in one pass, which takes hardly longer than scoring one.",
  "Each guess is kept with the chance min(1, q / p): q is how likely the target finds it, p how likely the draft did. So guesses that the target likes at least as much are always kept, others in proportion.",
  "At the first rejection the target puts a token of its own there, drawn from what the draft left out, (q − p)₊. If all were kept, the same pass gives one more for free.",
  "Kept and replaced tokens together are distributed exactly as if the target had written alone: it is faster, and nothing is lost. Step through the rounds below to see it happen.",
];

class Viewer {
  constructor(data, root) {
    this.traces = data.traces.map((trace) => ({ ...trace, ...this.index(trace) }));
    this.groups = [...new Set(this.traces.map((trace) => trace.group))];
    this.root = root;
    this.round = 0;
    const alone = !data.rows.length;
    this.group = h("select", { "aria-label": "Prompt", onchange: () => this.choose() }, ...this.groups.map((name, i) => h("option", { value: i }, name || "this prompt")));
    this.first = h("select", { "aria-label": "Generation", onchange: () => this.restart() });
    this.second = h("select", { "aria-label": "Beside it", onchange: () => this.restart() });
    this.controls = h("div", { class: "controls" },
      this.button("|◀", "First round", () => this.go(0)), this.button("◀", "Round before (left arrow)", () => this.go(this.round - 1)),
      this.player = this.button("Play", "Play in slow motion (space)", () => this.play()),
      this.button("▶", "Next round (right arrow)", () => this.go(this.round + 1)), this.button("▶|", "Last round", () => this.go(Infinity)),
      this.where = h("output", { "aria-live": "polite" }));
    this.timeline = h("div", { class: "timeline" });
    this.story = h("div", { class: "story", "aria-live": "polite" });
    this.panes = h("div", { class: "panes" });
    this.stage = h("div", { class: "stage", tabindex: 0, role: "application", "aria-label": "Rounds: left and right arrows step, Home and End jump, space plays", onkeydown: (e) => this.key(e) },
      this.controls, this.timeline, this.story, this.panes);
    root.append(h("div", { class: "exhibit viewer" }, h("h2", {}, "Read it token by token"),
      data.told ? h("p", { class: "says" }, data.told) : null,
      h("details", { class: "lesson", open: alone }, h("summary", {}, "What is speculative sampling? Five sentences"), h("ol", {}, ...LESSON.map((line) => h("li", {}, line)))),
      h("div", { class: "choices" }, this.groups.length > 1 ? h("label", {}, "prompt ", this.group) : null, h("label", {}, "read ", this.first), this.besides = h("label", {}, "beside ", this.second)),
      h("p", { class: "key" }, ...Object.entries(ORIGINS).map(([name, meaning]) => h("span", { class: `token ${name}`, title: meaning }, name))),
      this.stage));
    const steady = this.groups.findIndex((name) => this.traces.every((trace) => trace.group !== name || !trace.flags.length));
    this.group.value = Math.max(0, steady);
    new ResizeObserver(() => { if (this.stage.clientWidth !== this.wide) this.draw(); }).observe(this.stage);
    this.choose();
  }

  button(label, title, onclick) { return h("button", { type: "button", title, "aria-label": title, onclick }, label); }

  // Where each round begins: in tokens and in seconds.
  index(trace) {
    let token = 0, time = trace.prefill;
    const begins = trace.steps.map((step) => {
      const at = { token, time };
      token += step.emitted;
      time += step.seconds;
      return at;
    });
    return { begins, total: time };
  }

  choose() {
    const own = this.traces.filter((trace) => trace.group === this.groups[+this.group.value || 0]);
    this.own = own;
    const options = () => own.map((trace, i) => h("option", { value: i }, trace.name));
    this.first.replaceChildren(...options());
    this.second.replaceChildren(h("option", { value: -1 }, "nothing"), ...options());
    const plain = own.findIndex((trace) => trace.steps.every((step) => !step.drafted));
    const drafting = own.findIndex((trace) => trace.steps.some((step) => step.drafted));
    this.first.value = drafting >= 0 ? drafting : 0;
    this.second.value = plain >= 0 && drafting >= 0 ? plain : -1;
    this.besides.hidden = own.length < 2;
    this.restart();
  }

  restart() { this.stop(); this.round = 0; this.stage.classList.remove("stepping"); this.draw(); }

  get main() { return this.own[+this.first.value]; }
  get beside() { return this.own[+this.second.value] ?? null; }

  go(round) {
    this.round = Math.max(0, Math.min(round, this.main.steps.length - 1));
    this.stage.classList.add("stepping");
    this.mark();
  }

  key(event) {
    if (event.target.tagName === "SELECT" || (event.target.tagName === "BUTTON" && event.key === " ")) return;
    const to = { ArrowRight: this.round + 1, ArrowLeft: this.round - 1, Home: 0, End: Infinity }[event.key];
    if (to !== undefined) this.go(to);
    else if (event.key === " ") this.play();
    else return;
    event.preventDefault();
  }

  play() {
    if (this.timer) return this.stop();
    if (this.round >= this.main.steps.length - 1) this.go(0);
    this.player.textContent = "Pause";
    const longest = Math.max(...this.main.steps.map((step) => step.seconds), 1e-9);
    const next = () => {
      if (this.round >= this.main.steps.length - 1) return this.stop();
      this.go(this.round + 1);
      this.timer = setTimeout(next, 150 + (650 * this.main.steps[this.round].seconds) / longest);
      return undefined;
    };
    this.timer = setTimeout(next, 300);
    return undefined;
  }

  stop() { clearTimeout(this.timer); this.timer = null; this.player.textContent = "Play"; }

  draw() {
    this.wide = this.stage.clientWidth;
    const shown = [this.main, this.beside].filter(Boolean);
    this.spans = shown.map((trace) => this.words(trace));
    this.panes.replaceChildren(...shown.map((trace, i) => h("article", { class: "pane" }, h("h3", {}, trace.name),
      h("p", { class: "sum" }, this.sum(trace)),
      trace.prompt ? h("p", { class: "prompt" }, h("span", { class: "muted" }, "prompt "), trace.prompt) : null,
      h("p", { class: "text" }, ...this.spans[i].flat()),
      trace.words ? null : h("p", { class: "says" }, "Its tokenizer is not on this machine, so tokens are shown by number. The whole text: ", h("span", { class: "text" }, trace.text)))));
    this.lanes(shown);
    this.mark();
  }

  sum(trace) {
    const seconds = trace.total - trace.prefill, count = trace.tokens.length;
    return `${count} tokens in ${trace.steps.length} rounds, ${number(seconds * 1e3, 0)} ms after a prefill of ${number(trace.prefill * 1e3, 0)} ms; τ ${number(count / Math.max(1, trace.steps.length), 2)}; ended by ${trace.finish}${trace.flags.length ? `; its times enter no figure (${trace.flags.join(", ")})` : ""}`;
  }

  // Spans by round.
  words(trace) {
    return trace.steps.map((step, round) => {
      const { token } = trace.begins[round];
      return trace.tokens.slice(token, token + step.emitted).map((text, i) => {
        const at = token + i, origin = trace.origins[at];
        const written = trace.words ? text.replaceAll("\n", "⏎\n") || (at === trace.tokens.length - 1 ? "■" : "·") : ` ${text}`;
        const span = h("span", { class: `token ${origin}` }, written);
        span.addEventListener("pointerenter", () => { const box = span.getBoundingClientRect(); tip.show(this.facts(trace, round, i, at, origin, written), box.left, box.top); });
        span.addEventListener("pointerleave", () => tip.hide());
        span.addEventListener("click", () => { if (trace === this.main) this.go(round); });
        return span;
      });
    });
  }

  facts(trace, round, i, at, origin, text) {
    const step = trace.steps[round], law = origin === "accepted" ? step.laws[i] : null;
    return [text.trim() || "(space)", `${origin}: ${ORIGINS[origin]}`, `token ${at + 1}, round ${round + 1} of ${trace.steps.length}, ${number(step.seconds * 1e3, 2)} ms`,
      law ? `draft p ${number(law[1], 4)}, target q ${number(law[2], 4)}, kept with chance ${number(chance(law), 3)}`
        : step.overlap !== null && step.tested > 0 ? `acceptance chance in this round, on average ${number(step.overlap / step.tested, 3)}` : "",
    ].filter(Boolean);
  }

  lanes(shown) {
    const width = Math.max(280, this.wide - 34), lane = 42, left = 8;
    const far = Math.max(...shown.map((trace) => trace.total)) || 1;
    const x = scale([0, far], [left, width - 8]);
    const svg = s("svg", { width, height: shown.length * lane + 40, viewBox: `0 0 ${width} ${shown.length * lane + 40}`, role: "img", "aria-label": "Timeline of rounds: prefill, draft, target and verify" });
    for (const tick of ticks(0, far * 1e3, Math.floor(width / 110))) {
      svg.append(s("line", { x1: x(tick / 1e3), x2: x(tick / 1e3), y1: 0, y2: shown.length * lane, class: "grid" }),
        s("text", { x: x(tick / 1e3), y: shown.length * lane + 14, class: "tick", "text-anchor": tick ? "middle" : "start" }, `${tick} ms`));
    }
    this.blocks = shown.map((trace, n) => {
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
        group.addEventListener("click", () => { if (n === 0) this.go(round); });
        group.addEventListener("pointerenter", () => { const box = group.getBoundingClientRect(); tip.show([`${trace.name}, round ${round + 1}`, `draft ${number(step.draft * 1e3, 2)}, target ${number(step.target * 1e3, 2)}, verify ${number(rest * 1e3, 2)} ms`, `${step.emitted} tokens`], box.left, box.top); });
        group.addEventListener("pointerleave", () => tip.hide());
        svg.append(group);
        return group;
      });
    });
    this.cursor = s("line", { y1: 0, y2: shown.length * lane, class: "cursor" });
    this.x = x;
    svg.append(this.cursor);
    ["prefill", "draft", "target", "verify"].forEach((name, i) => {
      svg.append(s("rect", { x: left + i * 68, y: shown.length * lane + 24, width: 10, height: 10, fill: i ? `var(--part${i - 1})` : "var(--prefill)" }),
        s("text", { x: left + 15 + i * 68, y: shown.length * lane + 33, class: "tick" }, name));
    });
    this.timeline.replaceChildren(svg);
  }

  // The round that is looked at, and how far the other text has come by its end.
  mark() {
    const { main } = this, step = main.steps[this.round];
    if (!step) return;
    const end = main.begins[this.round].time + step.seconds;
    const reached = [this.round];
    if (this.beside) reached.push(this.beside.steps.filter((each, i) => this.beside.begins[i].time + each.seconds <= end + 1e-9).length - 1);
    this.spans.forEach((rounds, n) => rounds.forEach((spans, round) => spans.forEach((span) => {
      span.classList.toggle("later", round > reached[n]);
      span.classList.toggle("now", round === reached[n]);
    })));
    this.blocks.forEach((rounds, n) => rounds.forEach((block, round) => block.classList.toggle("now", round === reached[n])));
    this.cursor.setAttribute("x1", this.x(end));
    this.cursor.setAttribute("x2", this.x(end));
    this.where.textContent = `round ${this.round + 1} of ${main.steps.length}`;
    this.story.replaceChildren(...this.tell(main, step, reached, end));
  }

  tell(main, step, reached, end) {
    const from = main.begins[this.round].token, out = main.tokens.slice(from, from + step.emitted), origins = main.origins.slice(from, from + step.emitted);
    const chips = [];
    for (let i = 0; i < step.drafted; i++) {
      const law = step.laws[i], fate = i < step.accepted ? "accepted" : i === step.accepted && step.tested !== -1 ? "rejected" : "unseen";
      const word = law ? law[0] : i < step.accepted ? out[i] ?? "cut" : "?";
      chips.push(h("span", { class: `draft ${fate}` }, h("b", {}, word.replaceAll("\n", "⏎") || "·"),
        h("small", {}, fate === "accepted" ? "✓ kept" : fate === "rejected" ? "✗ rejected" : "not looked at"),
        law && fate !== "unseen" ? h("small", {}, `p ${number(law[1], 3)} · q ${number(law[2], 3)} · chance ${number(chance(law), 2)}`) : null));
    }
    const last = origins.length - 1;
    if (last >= 0 && origins[last] !== "accepted")
      chips.push(h("span", { class: `draft ${origins[last]}` }, h("b", {}, out[last].replaceAll("\n", "⏎") || "■"), h("small", {}, origins[last])));
    const told = !step.drafted ? "Nothing was drafted: one pass of the target, one token."
      : `The draft model guessed ${step.drafted} token${step.drafted > 1 ? "s" : ""}; the target scored them in one pass. `
        + (step.accepted === step.drafted ? "All were kept, and the target's next token came for free."
          : step.tested === -1 ? `${step.accepted} were kept.` : `${step.accepted ? `${step.accepted} kept, the next` : "The first"} was rejected, and the target put its own token there.`);
    const race = this.beside ? ` By then, ${number(end * 1e3, 0)} ms after the start, ${main.name} has ${from + step.emitted} tokens and ${this.beside.name} ${reached[1] < 0 ? 0 : this.beside.begins[reached[1]].token + this.beside.steps[reached[1]].emitted}.` : "";
    return [h("p", {}, `${told} ${step.emitted} token${step.emitted === 1 ? "" : "s"} in ${number(step.seconds * 1e3, 2)} ms.${race}`), h("div", { class: "drafts" }, ...chips)];
  }
}

const chance = (law) => (law[1] > 0 ? Math.min(1, law[2] / law[1]) : 1);
