// A generation token by token and round by round, next to another one of the same prompt.
class Viewer {
  constructor(data, root) {
    this.traces = data.traces.map((trace) => ({ ...trace, ...this.index(trace) }));
    this.aligned = false;
    this.root = root;
    this.round = 0;
    const alone = !data.selection;
    this.group = h("select", { "aria-label": "Prompt", onchange: () => this.pick() });
    this.first = h("select", { "aria-label": "Generation", onchange: () => this.restart() });
    this.second = h("select", { "aria-label": "Compare with", onchange: () => this.restart() });
    this.aligner = h("button", { type: "button", class: "toggle", "aria-pressed": "false", onclick: () => { this.aligned = !this.aligned; this.draw(); } }, "Align by token");
    this.controls = h("div", { class: "controls" },
      this.button("|◀", "First round", () => this.go(0)), this.button("◀", "Round before (left arrow)", () => this.go(this.round - 1)),
      this.player = this.button("Play", "Play in slow motion (space)", () => this.play()),
      this.button("▶", "Next round (right arrow)", () => this.go(this.round + 1)), this.button("▶|", "Last round", () => this.go(Infinity)),
      this.where = h("output", { "aria-live": "polite" }));
    this.timeline = h("div", { class: "timeline" });
    this.story = h("div", { class: "story", "aria-live": "polite" });
    this.panes = h("div", { class: "panes" });
    this.stage = h("div", { class: "stage", tabindex: 0, role: "application", "aria-label": "Rounds: left and right arrows step, Home and End jump, space plays, a aligns the two texts", onkeydown: (e) => this.key(e) },
      this.controls, this.timeline, this.story, this.panes);
    root.append(h("div", { class: "exhibit viewer" }, h("h2", {}, "Read it token by token"),
      data.selection ? h("p", { class: "says" }, data.selection) : null,
      h("details", { class: "lesson", open: alone }, h("summary", {}, "What is speculative sampling? Six sentences"), h("ol", {}, ...LESSON.map((line) => h("li", {}, line)))),
      h("div", { class: "choices" }, this.prompts = h("label", {}, "prompt ", this.group), h("label", {}, "read ", this.first), this.besides = h("label", {}, "compare with ", this.second), this.aligner),
      h("p", { class: "key" }, ...Object.entries(ORIGINS).map(([name, meaning]) => h("span", { class: `token ${name}`, title: meaning }, name))),
      this.stage));
    new ResizeObserver(() => { if (this.stage.clientWidth !== this.wide && this.own.length) this.draw(); }).observe(this.stage);
    this.choose();
  }

  button(label, title, onclick) { return h("button", { type: "button", title, "aria-label": title, onclick }, label); }

  // Rounds from their columns, where each begins (in tokens and in seconds), and the origin of each token.
  index(trace) {
    let token = 0, time = trace.prefill;
    const steps = (trace.steps.emitted ?? []).map((_, i) => Object.fromEntries(Object.entries(STEP).map(([name, none]) => [name, trace.steps[name]?.[i] ?? none])));
    const origins = [...trace.origins].map((letter) => Object.keys(ORIGINS).find((name) => name[0] === letter));
    const begins = steps.map((step) => {
      const at = { token, time };
      token += step.emitted;
      time += step.seconds;
      return at;
    });
    return { steps, origins, begins, total: time, words: trace.text === null };
  }

  // The first prompt whose times all count is shown first.
  choose() {
    this.groups = [...new Set(this.traces.map((trace) => trace.group))];
    this.group.replaceChildren(...this.groups.map((name, i) => h("option", { value: i }, name || "this prompt")));
    const steady = this.groups.findIndex((name) => this.traces.every((trace) => trace.group !== name || !trace.flags.length));
    this.group.value = Math.max(0, steady);
    this.prompts.hidden = this.groups.length < 2;
    this.pick();
  }

  pick() {
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
    if (own.length) this.restart();
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
    else if (event.key === "a" && this.beside) this.aligner.click();
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
    this.paired = this.aligned && shown.length > 1;
    this.spans = shown.map((trace) => this.words(trace));
    this.aligner.hidden = shown.length < 2;
    this.aligner.setAttribute("aria-pressed", String(this.aligned));
    if (this.paired) this.panes.replaceChildren(together(shown, this.spans));
    else this.panes.replaceChildren(...shown.map((trace, i) => h("article", { class: "pane" }, h("h3", {}, trace.name),
      h("p", { class: "sum" }, this.sum(trace)),
      trace.prompt ? h("p", { class: "prompt" }, h("span", { class: "muted" }, "prompt "), trace.prompt) : null,
      h("p", { class: "text" }, ...this.spans[i].flat()),
      trace.words ? null : h("p", { class: "says" }, "Its tokenizer is not on this machine, so tokens are shown by number. The whole text: ", h("span", { class: "text" }, trace.text)))));
    lanes(this, shown);
    this.mark();
  }

  sum(trace) {
    const seconds = trace.total - trace.prefill, count = trace.tokens.length;
    return `${count} tokens in ${trace.rounds || "n/a"} rounds, ${number(seconds * 1e3, 0)} ms after a prefill of ${number(trace.prefill * 1e3, 0)} ms; τ ${number(trace.tau, 2)}; ended by ${trace.finish}${trace.flags.length ? `; its times enter no figure (${trace.flags.join(", ")})` : ""}`;
  }

  // Spans by round.
  words(trace) {
    return trace.steps.map((step, round) => {
      const { token } = trace.begins[round];
      return trace.tokens.slice(token, token + step.emitted).map((text, i) => {
        const at = token + i, origin = trace.origins[at];
        const written = trace.words ? text.replaceAll("\n", this.paired ? "⏎" : "⏎\n") || (at === trace.tokens.length - 1 ? "■" : "·") : ` ${text}`;
        const span = h("span", { class: `token ${origin}` }, written);
        span.addEventListener("pointerenter", () => { const box = span.getBoundingClientRect(); tip.show(this.facts(trace, round, i, at, origin, written), box.left, box.top); });
        span.addEventListener("pointerleave", () => tip.hide());
        span.addEventListener("click", () => { if (trace === this.main) this.go(round); });
        return span;
      });
    });
  }

  facts(trace, round, i, at, origin, text) {
    const step = trace.steps[round], law = origin === "accepted" ? step.laws[nodeAt(step, i)] : null;
    const others = step.likeliest[i ? nodeAt(step, i - 1) + 1 : 0];
    return [text.trim() || "(space)", `${origin}: ${ORIGINS[origin]}`, `token ${at + 1}, round ${round + 1} of ${trace.steps.length}, ${number(step.seconds * 1e3, 2)} ms`,
      law ? `draft p ${number(law[1], 4)}, target q ${number(law[2], 4)}${step.tree ? "" : `, accepted with chance ${number(chance(law), 3)}`}`
        : step.overlap !== null && step.tested > 0 ? `acceptance chance in this round, on average ${number(step.overlap / step.tested, 3)}` : "",
      others ? `the target's likeliest: ${others.map(([word, q]) => `${named(word)} ${number(q, 3)}`).join(", ")}` : "",
    ].filter(Boolean);
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
    this.story.replaceChildren(...tell(this, step, reached, end));
  }
}
