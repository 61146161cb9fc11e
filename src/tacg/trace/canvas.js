// A decode as it looked after every step, and the stage on which it is shown.
// The live page loads this file as a module; the trace player carries a copy inside (player.py).
"use strict";

const MEANINGS = {
  base: "accepted by the policy",
  extra: "promoted by the trajectory",
  fallback: "nothing passed, so the best candidate was taken",
  finish: "written with everything that was left, to finish",
  branch: "part of the branch that was chosen",
  edit: "replaced another token",
  forced: "the only token that the constraint allows",
  remask: "taken back and masked again",
  recorded: "as recorded",
};
const USUAL = ["base", "extra", "fallback"];
const SPEEDS = {slow: 700, normal: 250, fast: 80, "as it comes": 0};  // milliseconds per step
const CURVES = ["confidence", "support", "streak"];

const make = (tag, className = "", text = "") => Object.assign(document.createElement(tag), {className, textContent: text});

function shape(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const quoted = text => "“" + text.replaceAll("\n", "↵") + "”";
const short = value => value === undefined ? "–" : Number.isInteger(value) ? String(value) : value.toPrecision(3);
const plain = value => String(+value.toPrecision(3));  // of a knob: 0.9, not 0.900
const steps = count => `${count} step${count === 1 ? "" : "s"}`;

// One trace. It may grow line by line while it is shown; `over` is true once nothing more will come.
class Decode {
  constructor(name = "") {
    Object.assign(this, {name, start: null, end: null, over: false, last: 0, lines: [], pieces: {}, tally: [], forwards: [], given: new Map(), writes: [], history: []});
  }

  static of(document) {  // a whole trace, as `Trace.document` writes it
    const decode = new Decode();
    [document.start, ...document.steps].forEach(line => decode.take(line));
    Object.assign(decode.pieces, document.pieces);
    if (document.end) decode.take(document.end);
    decode.over = true;
    return decode;
  }

  take(line) {
    this.lines.push(line);
    if (line.kind === "start") this.begin(line);
    else if (line.kind === "step") this.step(line);
    else if (line.kind === "end") Object.assign(this, {end: line, over: true});
  }

  begin(line) {
    this.start = line;
    this.name = line.policy;
    this.given = new Map(line.given ?? []);
    Object.assign(this.pieces, line.pieces);
    this.writes = Array.from({length: line.gen_length}, () => []);
    this.history = Array.from({length: line.gen_length}, () => new Map());
  }

  step(line) {
    this.last += 1;
    Object.assign(this.pieces, line.pieces);
    for (const [position, token, confidence, ...rest] of line.proposals) {
      const signals = Object.fromEntries(line.names.map((name, i) => [name, rest[i]]));
      this.history[position].set(this.last, {step: this.last, token, confidence, ...signals});
    }
    const tally = {};
    for (const [position, token, reason] of line.committed) {
      const confidence = this.history[position].get(this.last)?.confidence ?? 1;
      this.writes[position].push({token, reason, confidence, when: this.last});
      tally[reason] = (tally[reason] ?? 0) + 1;
    }
    this.tally.push(tally);
    this.forwards.push(line.forwards ?? this.last);
  }

  // What a position shows after a step. `kind` is given, draft, mask, or the reason for which it is committed; then
  // `reason` and `when` say so. A draft or mask that was committed before has `remasked`, the step that took it back.
  at(position, step) {
    if (this.given.has(position)) return {kind: "given", token: this.given.get(position), confidence: 1};
    const write = this.writes[position].findLast(each => each.when <= step);
    if (write && write.reason !== "remask") return {...write, kind: write.reason};
    const dropped = this.end && step >= this.last;  // drafts beyond the end were never written
    const idea = dropped ? undefined : this.history[position].get(step);
    return {...idea, kind: idea ? "draft" : "mask", remasked: write?.when};
  }

  spell(token) {
    return this.pieces[token] ?? "?";
  }

  // Forwards and tokens per forward as they stood after a step; once it is over, as the engine counted them.
  counts(step) {
    const done = this.end !== null && step >= this.last;
    const committed = this.writes.filter((_, position) => this.at(position, step).reason).length;
    const forwards = done ? this.end.forwards : this.forwards[Math.min(step, this.last) - 1] ?? 0;
    const tokens = done ? this.end.tokens.length : committed;
    return {step: Math.min(step, this.last), forwards, committed, tpf: forwards ? tokens / forwards : 0, done};
  }
}

// ---- why, in plain words

// The rule with its numbers: why a position was committed for a reason, or (without one) why it is still masked.
// `seen` are the signals of that step.
function because(decode, reason, seen) {
  const knobs = decode.start.knobs ?? {}, rule = ruled(decode), sure = `confidence ${short(seen.confidence)}`;
  const bar = knobs.factor == null && rule.byThreshold ? knobs.threshold : undefined;
  const escapes = knobs.tau_escape !== undefined && seen.confidence >= knobs.tau_escape;
  const lasted = need => escapes ? `at ${plain(knobs.tau_escape)} or above it need not persist`
    : `the proposal has lasted ${steps(seen.streak)}, ${need} ${need === 1 ? "is" : "are"} needed`;
  const gated = knobs.m_base > 1 && seen.streak !== undefined;
  if (reason === "base") {
    const passed = bar !== undefined && seen.confidence >= bar ? [`${sure} reaches the threshold ${plain(bar)}`] : rule.words ? [`its rule: ${rule.words}`] : [];
    if (knobs.kl_threshold !== undefined && seen.kl !== undefined) passed.push(`the posterior has stopped changing (divergence ${short(seen.kl)}, limit ${plain(knobs.kl_threshold)})`);
    return sentence([...passed, ...gated ? [lasted(knobs.m_base)] : []]);
  }
  if (reason === "extra" && knobs.tau_floor !== undefined) {
    const most = knobs.k_extra === 1 ? "the largest" : `the ${knobs.k_extra} largest`;
    return sentence([`${sure} is above the floor ${plain(knobs.tau_floor)}`, lasted(knobs.m_extra ?? knobs.m_base), `confidence plus support is among ${most}`]);
  }
  if (reason === "fallback") return sentence([`too few positions passed in this step, and this one came first (${sure})`]);
  if (reason) return "";
  if (bar !== undefined && seen.confidence < bar) return sentence([`${sure} is below the threshold ${plain(bar)}`]);
  if (gated && !escapes && seen.streak < knobs.m_base) return sentence([`${sure} would be enough, but ${lasted(knobs.m_base)}`]);
  return rule.words ? sentence([`it has not passed yet. The rule: ${rule.words}`]) : "";
}

// The policy's own sentence, with the value of every knob that it names.
function ruled(decode) {
  const {rule = "", knobs = {}, policy = ""} = decode.start;
  const words = rule.replaceAll(/`(\w+)`/g, (_, name) => name in knobs ? `${name} (${knobs[name] ?? "none"})` : name);
  const inner = policy.replace(/\(.*/, "").split("+").at(-1);
  return {words, byThreshold: ["tacg", "confidence", "klass", "tacg-released", "tacg-released-dream", "localleap", "credit", "lopa"].includes(inner)};
}

function sentence(parts) {
  const text = parts.join("; ").replace(/\.$/, "");
  return text && `${text[0].toUpperCase()}${text.slice(1)}.`;
}

// Small sudokus are drawn as grids. Their layout is in the prompt, and an answer has a token per cell and per line break.
function sudoku({prompt, gen_length: length}) {
  const asked = prompt?.match(/(\d+) by \1 sudokus? with (\d+) by (\d+) boxes:\n([\s\S]+)$/);
  if (!asked) return null;
  const size = +asked[1], puzzles = asked[4].split("\n\n").map(text => text.trim().split(/\s+/)), each = size * (size + 1) + 1;
  if (puzzles.some(cells => cells.length !== size * size) || length < puzzles.length * each - 1) return null;
  const cell = position => {
    const puzzle = Math.floor(position / each), row = Math.floor(position % each / (size + 1)), column = position % each % (size + 1);
    if (puzzle >= puzzles.length) return null;
    if (row >= size || column >= size) return {puzzle, kind: "break"};
    const place = row * size + column, edge = (at, box) => (at + 1) % box === 0 && at + 1 < size;
    const kind = ["cell", puzzles[puzzle][place] !== "." && "clue", edge(column, +asked[3]) && "edge-right", edge(row, +asked[2]) && "edge-below"];
    return {puzzle, number: puzzle * size * size + place, kind: kind.filter(Boolean).join(" ")};
  };
  return {size, count: puzzles.length, cell};
}

// The settings of a decode in a line.
function facts({gen_length: length, settings = {}}) {
  const blocks = settings.block_length < length ? ` in blocks of ${settings.block_length}` : "";
  const more = [settings.temperature > 0 && `temperature ${settings.temperature}, seed ${settings.seed}`, !["auto", "none", undefined].includes(settings.cache) && `${settings.cache} cache`];
  return [`${length} positions${blocks}`, ...more.filter(Boolean)].join(" · ");
}

// One decode on the stage: its numbers, its canvas, and how much each step committed.
class Panel {
  constructor(decode, card) {
    Object.assign(this, {decode, card, spans: [], shown: [], drawn: ""});
    this.box = make("section", "panel");
    this.title = make("h2", "", decode.name);
    this.state = make("span", "state");
    this.grade = make("span", "grade");
    this.facts = make("p", "facts");
    const head = make("header");
    head.append(this.title, this.grade, this.state);
    this.numbers = {};
    const numbers = make("dl", "numbers");
    for (const [key, label] of [["step", "step"], ["forwards", "forwards"], ["tpf", "tokens per forward"], ["committed", "committed"]]) {
      const pair = make("div", key);
      this.numbers[key] = make("dd", "", "0");
      pair.append(make("dt", "", label), this.numbers[key]);
      numbers.append(pair);
    }
    this.canvas = make("div", "canvas");
    this.canvas.setAttribute("role", "listbox");
    this.answer = make("p", "unseen");
    this.bars = shape("svg", {class: "bars", preserveAspectRatio: "none", role: "img", "aria-label": "what each step wrote"});
    this.box.append(head, this.facts, numbers, this.canvas, this.answer, this.bars);
    this.listen();
  }

  // Spans of the canvas once the start line has said how many positions there are.
  lay() {
    if (this.spans.length || !this.decode.start) return;
    this.title.textContent = this.decode.name;
    this.facts.textContent = facts(this.decode.start);
    this.puzzles = sudoku(this.decode.start);
    this.canvas.setAttribute("aria-label", `canvas of ${this.decode.name}; up and down go from token to token`);
    this.spans = this.decode.writes.map((_, position) => {
      const span = make("span", "token mask", "·");
      span.dataset.position = position;
      span.tabIndex = position ? -1 : 0;
      span.setAttribute("role", "option");
      return span;
    });
    this.canvas.replaceChildren(...this.puzzles ? this.grids() : this.spans);
  }

  // The spans in one grid per sudoku; line breaks stay among them, unseen, so that the text is the answer's.
  grids() {
    this.canvas.classList.add("sudoku");
    const grids = Array.from({length: this.puzzles.count}, () => make("div", "grid"));
    for (const grid of grids) grid.style.setProperty("--size", this.puzzles.size);
    const rest = make("span", "rest");
    this.spans.forEach((span, position) => (grids[this.puzzles.cell(position)?.puzzle] ?? rest).append(span));
    return [...grids, rest];
  }

  listen() {
    const position = event => event.target.dataset.position === undefined ? null : +event.target.dataset.position;
    const open = event => { if (position(event) !== null) this.card.open(this, position(event)); };
    this.canvas.addEventListener("mousemove", event => { if (event.movementX || event.movementY) open(event); });  // not when the page scrolls under it
    this.canvas.addEventListener("focusin", open);
    this.canvas.addEventListener("mouseleave", () => this.card.close(this.focused()));
    this.canvas.addEventListener("focusout", () => this.card.close(null));
    this.canvas.addEventListener("keydown", event => {
      const here = position(event), end = this.spans.length - 1;
      const next = {ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: end}[event.key];
      if (here === null || next === undefined) return;
      event.preventDefault();
      this.focus(Math.max(0, Math.min(end, next)));
    });
    this.canvas.addEventListener("click", event => { if (position(event) !== null) this.focus(position(event)); });
  }

  focus(position) {
    for (const span of this.canvas.querySelectorAll("[tabindex='0']")) span.tabIndex = -1;
    this.spans[position].tabIndex = 0;
    this.spans[position].focus({preventScroll: false});
  }

  focused() {
    const span = this.canvas.querySelector(".token:focus");
    return span ? {panel: this, position: +span.dataset.position} : null;
  }

  show(step, width) {
    this.lay();
    const {decode} = this, counts = decode.counts(step);
    this.spans.forEach((span, position) => this.paint(span, position, decode.at(position, step), step));
    this.numbers.step.textContent = counts.step;
    this.numbers.forwards.textContent = counts.forwards;
    this.numbers.tpf.textContent = counts.tpf.toFixed(2);
    this.numbers.committed.textContent = `${counts.committed} of ${this.spans.length - decode.given.size}`;
    const stopped = decode.over && !decode.end && step >= decode.last;
    const {grade} = decode.end ?? {};
    this.grade.textContent = counts.done && grade ? grade.correct ? "✓ right" : "✗ wrong" : "";
    this.grade.className = `grade ${grade?.correct ? "right" : "wrong"}`;
    this.state.textContent = counts.done ? `done in ${steps(decode.last)}` : stopped ? "stopped" : "";
    this.answer.textContent = counts.done ? `Answer: ${decode.end.text}` : "";
    this.drawBars(step, width);
  }

  paint(span, position, cell, step) {
    const fresh = [cell.when, cell.remasked].includes(step) && (cell.reason || cell.remasked);
    const place = this.puzzles?.cell(position), wrong = place && this.mistaken(place, cell, step);
    const key = `${cell.kind} ${cell.token} ${cell.remasked} ${fresh} ${cell.confidence} ${wrong}`;
    if (this.shown[position] === key) return;
    this.shown[position] = key;
    const text = cell.kind === "mask" ? "·" : this.decode.spell(cell.token);
    span.textContent = text === "" ? "∅" : text;
    span.className = ["token", cell.kind, cell.remasked && "remask", fresh && "new", text === "∎" && "end", text.includes("\n") && "line", place?.kind, wrong && "wrong"].filter(Boolean).join(" ");
    span.style.setProperty("--sure", shade(cell.confidence ?? 0));
  }

  // Whether a cell of a graded sudoku is not as in the solution; known at the end.
  mistaken({number}, cell, step) {
    const {end, last} = this.decode;
    if (number === undefined || !end?.grade?.reference || step < last) return false;
    return this.decode.spell(cell.token).trim() !== end.grade.reference.trim().split(/\s+/)[number];
  }

  // One bar per step, stacked by reason; steps that are still to come at this point of the clock are pale.
  drawBars(step, width) {
    const key = `${this.decode.last} ${width}`;
    if (this.drawn !== key) {
      this.drawn = key;
      const sum = tally => Object.values(tally).reduce((a, b) => a + b, 0);
      const most = Math.max(4, ...this.decode.tally.map(sum));
      this.bars.setAttribute("viewBox", `0 0 ${width} ${most}`);
      this.bars.replaceChildren(...this.decode.tally.map((tally, i) => {
        let top = most;
        return shape("g", {}, ...Object.keys(MEANINGS).filter(reason => tally[reason]).map(reason =>
          shape("rect", {x: i + 0.12, y: top -= tally[reason], width: 0.76, height: tally[reason], class: reason})));
      }));
    }
    [...this.bars.children].forEach((bar, i) => bar.setAttribute("class", i < step ? "past" : "future"));
  }

  // A token in words, for those who hear the page.
  describe(position, step) {
    const cell = this.decode.at(position, step);
    const again = cell.remasked ? `, masked again in step ${cell.remasked}` : "";
    if (cell.kind === "mask") return `position ${position + 1}, masked${again}`;
    const word = `position ${position + 1}, ${quoted(this.decode.spell(cell.token))}`;
    if (cell.kind === "given") return `${word}, given`;
    const state = cell.reason ? `committed in step ${cell.when}, ${MEANINGS[cell.reason] ?? cell.reason}` : `proposed${again}`;
    return `${word}, ${state}, confidence ${short(cell.confidence)}`;
  }
}

// Most commits are above 0.8: the cube spreads them out.
const shade = confidence => (confidence ** 3).toFixed(3);

// What a token's position has been through.
class Card {
  constructor(clock) {
    this.clock = clock;  // () => the step that is shown
    this.at = null;
    this.box = make("div", "card");
    this.box.id = "card";
    this.box.setAttribute("role", "tooltip");
    this.box.hidden = true;
    document.body.append(this.box);
    addEventListener("keydown", event => { if (event.key === "Escape") this.close(null); });
    addEventListener("scroll", () => { if (this.at) this.place(); }, {passive: true});
  }

  open(panel, position) {
    this.at = {panel, position};
    this.draw();
  }

  close(instead) {
    this.at = instead;
    this.draw();
  }

  draw() {
    const past = this.at ? [...this.at.panel.decode.history[this.at.position]?.values() ?? []] : [];
    this.box.hidden = !past.length;
    if (this.at) {
      const span = this.at.panel.spans[this.at.position];
      span.setAttribute("aria-label", this.at.panel.describe(this.at.position, this.clock()));
    }
    if (!past.length) return;
    const {panel: {decode}, position} = this.at, now = this.clock();
    const cell = decode.at(position, now), writes = decode.writes[position].filter(each => each.when <= now);
    const reached = past.findLast(each => each.step <= now) ?? past[0];
    const head = make("div", "head");
    head.append(make("strong", "", quoted(decode.spell(cell.token ?? reached.token))), make("span", "", `position ${position + 1}`));
    const last = writes.at(-1);
    const state = last ? `${last.reason}, step ${last.when}: ${MEANINGS[last.reason] ?? ""}` : "still masked";
    const seen = last ? past.find(each => each.step === last.when) : reached, why = seen ? because(decode, last?.reason, seen) : "";
    this.box.replaceChildren(head, make("p", `verdict ${last?.reason ?? "draft"}`, state), ...why ? [make("p", "why", why)] : [], this.chart(past, now, writes, reached), this.sayings(decode, past));
    this.place();
  }

  chart(past, now, writes, reached) {
    const chart = make("div", "chart");
    for (const name of CURVES.filter(name => past.some(each => each[name] !== undefined)))
      chart.append(make("span", "name", name), curve(past, name, now, writes), make("span", "value", short(reached[name])));
    const [first, last] = [past[0].step, past.at(-1).step];
    chart.append(make("span", "axis", first === last ? `step ${first}` : `steps ${first} to ${last}`));
    return chart;
  }

  // Which tokens were proposed here, and from which step on.
  sayings(decode, past) {
    const changes = past.filter((each, i) => !i || each.token !== past[i - 1].token);
    const list = make("p", "sayings", changes.length > 6 ? "… " : "");
    for (const each of changes.slice(-6)) list.append(make("span", "", `${each.step} ${quoted(decode.spell(each.token))}`), " ");
    return list;
  }

  // Under the token, or above it where there is no room; on a phone the style sheet puts it at the bottom instead.
  place() {
    const near = this.at.panel.spans[this.at.position].getClientRects()[0];
    if (!near || this.box.hidden) return;
    const {offsetWidth: width, offsetHeight: height} = this.box;
    const below = near.bottom + height + 14 < innerHeight;
    this.box.style.left = `${Math.max(8, Math.min(near.left - 12, innerWidth - width - 8))}px`;
    this.box.style.top = `${Math.max(8, below ? near.bottom + 8 : near.top - height - 8)}px`;
  }
}

function curve(past, name, now, writes) {
  const [first, last] = [past[0].step, past.at(-1).step], values = past.map(each => each[name] ?? 0);
  const low = Math.min(0, ...values), high = Math.max(name === "support" ? 0.01 : 1, ...values);
  const x = step => last > first ? 2 + 96 * (step - first) / (last - first) : 50;
  const y = value => 23 - 20 * (value - low) / (high - low);
  const points = which => past.filter(which).map(each => `${x(each.step)},${y(each[name] ?? 0)}`).join(" ");
  const box = shape("svg", {class: `curve ${name}`, viewBox: "0 0 100 26", preserveAspectRatio: "none", "aria-hidden": true});
  box.append(shape("line", {class: "floor", x1: 0, x2: 100, y1: y(0), y2: y(0)}));
  for (const {when, reason} of writes) box.append(shape("line", {class: `write ${reason}`, x1: x(when), x2: x(when), y1: 0, y2: 26}));
  box.append(shape("polyline", {class: "future", points: points(() => true)}));
  box.append(shape("polyline", {points: points(each => each.step <= now)}));
  const here = past.findLast(each => each.step <= now) ?? past[0];
  const spot = `${x(here.step)},${y(here[name] ?? 0)}`;
  box.append(shape("polyline", {class: "spot", points: `${spot} ${spot}`}));  // a line of no length with a round cap is a dot
  return box;
}

// Decodes side by side on one clock: a step of one is shown with the same step of the others.
class Stage {
  constructor(root, legend) {
    Object.assign(this, {root, legend, explained: null, panels: [], now: 0, timer: null});
    this.card = new Card(() => this.now);
    this.box = make("div", "panels");
    root.append(this.controls(), this.box);
    document.addEventListener("keydown", event => this.key(event));
    this.explain();
  }

  controls() {
    const bar = make("div", "controls");
    const button = (name, text, label, act) => {
      this[name] = Object.assign(make("button", "", text), {type: "button", title: label, onclick: act});
      if (text.length === 1) this[name].setAttribute("aria-label", label);
      return this[name];
    };
    this.scrub = Object.assign(make("input"), {type: "range", id: "scrub", min: 0, max: 0, value: 0, oninput: () => this.go(+this.scrub.value)});
    this.scrub.setAttribute("aria-label", "step");
    this.where = make("span", "where");
    this.speed = Object.assign(make("select"), {id: "speed", onchange: () => { if (this.timer) this.play(true); }});
    this.speed.setAttribute("aria-label", "speed");
    for (const [name, delay] of Object.entries(SPEEDS)) this.speed.append(new Option(name, delay, name === "normal", name === "normal"));
    bar.append(
      button("toggle", "Play", "space", () => this.play(!this.timer)),
      button("back", "‹", "one step back", () => this.go(this.now - 1)),
      button("next", "›", "one step on", () => this.go(this.now + 1)),
      this.scrub, this.where, this.speed,
    );
    this.toggle.id = "play";
    return bar;
  }

  // Show these decodes from the beginning.
  set(decodes) {
    this.play(false);
    this.card.close(null);
    this.panels = decodes.map(decode => new Panel(decode, this.card));
    this.box.replaceChildren(...this.panels.map(panel => panel.box));
    this.show(0);
  }

  get decodes() {
    return this.panels.map(panel => panel.decode);
  }

  get over() {
    return this.decodes.every(decode => decode.over);
  }

  // The last step that can be shown: no decode runs ahead of one that is still on its way.
  get ready() {
    const coming = this.decodes.filter(decode => !decode.over);
    return coming.length ? Math.min(...coming.map(decode => decode.last)) : Math.max(0, ...this.decodes.map(decode => decode.last));
  }

  // Something came: redraw what depends on how far it goes.
  refresh() {
    const live = this.timer && +this.speed.value === 0;
    this.show(live ? this.ready : this.now);
  }

  show(step) {
    const {ready} = this;
    this.now = Math.max(0, Math.min(ready, step));
    this.scrub.max = ready;
    this.scrub.value = this.now;
    this.scrub.setAttribute("aria-valuetext", `step ${this.now} of ${ready}`);
    this.where.textContent = `step ${this.now} / ${ready}${this.over ? "" : " …"}`;
    const width = Math.max(12, ready);
    for (const panel of this.panels) panel.show(this.now, width);
    this.explain();
    if (this.card.at) this.card.draw();
    this.onshow?.();
  }

  // A legend of all that may be seen here.
  explain() {
    const seen = this.decodes.flatMap(decode => decode.tally).flatMap(Object.keys);
    const reasons = Object.keys(MEANINGS).filter(reason => USUAL.includes(reason) || seen.includes(reason));
    if (this.decodes.some(decode => decode.given.size)) reasons.push("given");
    if (this.explained === reasons.join()) return;
    this.explained = reasons.join();
    this.legend.replaceChildren(legend(reasons));
  }

  go(step) {
    this.play(false);
    this.show(step);
  }

  play(on) {
    clearTimeout(this.timer);
    this.timer = null;
    if (on && this.over && this.now >= this.ready) this.show(0);
    if (on) this.tick();
    this.toggle.textContent = this.timer ? "Pause" : "Play";
  }

  tick() {
    const delay = +this.speed.value;
    this.timer = setTimeout(() => {
      this.show(delay ? this.now + 1 : this.ready);
      if (this.over && this.now >= this.ready) this.play(false);
      else this.tick();
    }, delay || 50);
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || !this.panels.length) return;
    const on = what => event.target.closest?.(what);
    if (on("textarea, select, input:not(#scrub)")) return;
    if (event.key === " " && !on("button, summary, a")) this.play(!this.timer);
    else if (event.key === "ArrowLeft" && !on("#scrub")) this.go(this.now - 1);
    else if (event.key === "ArrowRight" && !on("#scrub")) this.go(this.now + 1);
    else return;
    event.preventDefault();
  }
}

// What colours, lines and shades mean.
function legend(reasons) {
  const list = make("ul", "legend");
  const item = (sample, text) => {
    const line = make("li");
    line.append(sample, " ", text);
    list.append(line);
  };
  for (const reason of reasons) {
    const sample = make("span", `token ${reason === "remask" ? "draft remask" : reason}`, reason);
    sample.style.setProperty("--sure", shade(0.9));
    item(sample, MEANINGS[reason] ?? "there from the start");
  }
  const scale = make("span", "scale");
  for (const confidence of [0.5, 0.7, 0.8, 0.9, 1]) {
    const step = make("span", "token base", " ");
    step.style.setProperty("--sure", shade(confidence));
    scale.append(step);
  }
  item(scale, "confidence, 0.5 to 1");
  item(make("span", "token draft", "draft"), "proposed, still masked");
  item(make("span", "token mask", "·"), "masked");
  item(make("span", "token base end", "∎"), "end of the answer");
  return list;
}

export {Decode, Stage, make, steps};
