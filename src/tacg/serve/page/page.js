// The live page: asks the server for decodes and shows them while they arrive.
"use strict";
import {Decode, Stage, make, steps} from "./canvas.js";

// Three knobs are shown first, in this order after a policy's main one; the others are a click away.
const MATTER = ["k_extra", "m_base", "kl_threshold", "history", "gen_length", "block_length", "temperature"];
const FIRST = 3;

const find = id => document.getElementById(id);
const page = {info: null, sides: [], decode: [], running: null, stage: null, example: null};

// ---- the server

function key() {
  try { return sessionStorage.getItem("tacg-key") ?? ""; } catch { return find("key").value; }
}

async function ask(path, body, signal) {
  const headers = key() ? {Authorization: `Bearer ${key()}`} : {};
  const post = body && {method: "POST", body: JSON.stringify(body)};
  if (body) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {...post, headers, signal});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server cannot be reached. Is `tacg serve` still running?");
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  throw Object.assign(new Error(complaint(said) ?? `The server answered ${answer.status} ${answer.statusText}.`), {status: answer.status});
}

const complaint = said => said?.error?.message ?? said?.message ?? (typeof said?.error === "string" ? said.error : undefined);

// Events of a text/event-stream as [name, data]. An event that is cut off is dropped.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  const cut = error => { if (error.name === "AbortError") throw error; return {done: true}; };  // the connection is gone
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read().catch(cut);
    const whole = (rest + (value ?? "")).replaceAll("\r\n", "\n").split("\n\n");
    rest = whole.pop();
    for (const event of whole) {
      const fields = event.split("\n").map(line => line.match(/^(event|data): ?(.*)$/)).filter(Boolean);
      const of = name => fields.filter(field => field[1] === name).map(field => field[2]).join("\n");
      if (of("data")) yield [of("event"), of("data")];
    }
    if (done) return;
  }
}

// Fill a decode from the server until it ends or is stopped.
async function follow(decode, request, signal) {
  try {
    const answer = await ask("v1/decode", request, signal);
    for await (const [name, data] of events(answer)) {
      if (data === "[DONE]") continue;
      const line = JSON.parse(data);
      if (name === "error" || line.error) throw new Error(complaint(line) ?? data);
      decode.take(line);
      page.stage.refresh();
    }
    if (!decode.end) throw new Error("The connection ended before the answer did; what arrived is shown.");
    if (decode.end.finish_reason === "error") throw new Error(decode.end.error || "The decode failed; what arrived is shown.");
  } catch (error) {
    if (error.name !== "AbortError") throw error;
  } finally {
    decode.over = true;
    page.stage.refresh();
  }
}

// ---- knobs

// One knob: a slider with a number next to it, a choice, a switch, or a field that may stay empty.
class Dial {
  constructor(knob, owner, changed) {
    this.knob = knob;
    this.normal = page.info.defaults?.settings?.[knob.name] ?? knob.default;  // as the server was started
    this.box = make("div", "dial");
    const id = `${owner}-${knob.name}`, label = make("label", "", knob.name);
    if (knob.symbol && knob.symbol.toLowerCase() !== knob.name) label.append(make("i", "", knob.symbol));
    label.htmlFor = id;
    this.input = this.field();
    this.input.classList.add("field");
    this.input.id = id;
    const meaning = make("small", "", knob.meaning ?? "");
    meaning.id = `${id}-meaning`;
    this.input.setAttribute("aria-describedby", meaning.id);
    this.box.append(label, this.input);
    if (this.numeric && knob.default !== null && knob.name !== "seed") this.box.append(this.slider());
    this.box.append(meaning);
    this.box.addEventListener("input", () => { this.mark(); changed(); });
    this.set(this.normal);
  }

  get numeric() {
    return !this.knob.choices?.length && /^(int|float)/.test(this.knob.type);
  }

  field() {
    const {knob} = this;
    if (knob.choices?.length) {
      const select = make("select");
      for (const choice of knob.choices) select.append(new Option(choice, choice));
      return select;
    }
    if (knob.type.startsWith("bool")) return Object.assign(make("input"), {type: "checkbox"});
    const input = Object.assign(make("input"), {type: this.numeric ? "number" : "text", placeholder: knob.default === null ? "none" : ""});
    if (this.numeric) Object.assign(input, {min: knob.low ?? "", max: knob.high ?? "", step: knob.type.startsWith("int") ? 1 : "any", required: knob.default !== null});
    return input;
  }

  // If a knob has no upper limit, the slider ends at four times the default; the number next to it takes any value.
  slider() {
    const {knob} = this, whole = knob.type.startsWith("int"), low = knob.low ?? 0;
    const high = knob.high ?? page.info.limits?.[knob.name] ?? Math.max(4 * knob.default, low + (whole ? 4 : knob.default ? 0 : 2));
    const step = whole ? 1 : 10 ** Math.floor(Math.log10((high - low) / 50));
    this.range = Object.assign(make("input"), {type: "range", min: low, max: high, step, tabIndex: 0});
    this.range.setAttribute("aria-label", `${knob.name}, slider`);
    this.range.addEventListener("input", () => { this.input.value = +(+this.range.value).toPrecision(6); });
    this.input.addEventListener("input", () => { this.range.value = this.input.value; });
    return this.range;
  }

  get value() {
    if (this.input.type === "checkbox") return this.input.checked;
    if (this.input.value === "" && this.knob.default === null) return null;
    return this.numeric ? +this.input.value : this.input.value;
  }

  set(value) {
    if (this.input.type === "checkbox") this.input.checked = value;
    else this.input.value = value ?? "";
    if (this.range) this.range.value = value;
    this.mark();
  }

  get changed() {
    return this.value !== this.normal;
  }

  get mistake() {
    const {low, high} = this.knob, bounds = [low ?? null, high ?? null].some(each => each !== null);
    const range = !bounds ? "" : high === null || high === undefined ? `, at least ${low}` : `, from ${low} to ${high}`;
    return `“${this.knob.name}” must be ${this.knob.type.startsWith("int") ? "a whole number" : "a number"}${range}.`;
  }

  reveal() {
    for (let fold = this.box.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    this.input.focus();
  }

  mark() {
    this.box.classList.toggle("changed", this.changed);
  }
}

function dials(knobs, owner, box, main) {
  const made = knobs.map(knob => new Dial(knob, owner, summarise));
  const order = [main, ...MATTER], weight = dial => order.includes(dial.knob.name) ? order.indexOf(dial.knob.name) : order.length;
  const first = [...made].sort((a, b) => weight(a) - weight(b)).slice(0, FIRST);
  box.append(...first.map(dial => dial.box));
  const rest = made.filter(dial => !first.includes(dial));
  if (rest.length) {
    const more = make("details", "more");
    more.append(make("summary", "", `${rest.length} more`), ...rest.map(dial => dial.box));
    box.append(more);
  }
  return made;
}

const turned = dials => Object.fromEntries(dials.filter(dial => dial.changed).map(dial => [dial.knob.name, dial.value]));

// A policy and its knobs; a race has two of them.
class Side {
  constructor(title, number, chosen) {
    this.number = number;
    this.box = make("fieldset");
    this.pick = make("select");
    this.pick.id = `policy-${number}`;
    this.pick.setAttribute("aria-label", title);
    for (const policy of page.info.policies) this.pick.append(new Option(policy.name, policy.name));
    this.pick.value = chosen;
    this.pick.onchange = () => this.lay();
    this.about = make("p", "about");
    this.preset = Object.assign(make("select", "preset"), {id: `preset-${number}`, onchange: () => this.turn(this.presets[this.preset.value] ?? {})});
    this.preset.setAttribute("aria-label", `${title}: published settings`);
    this.knobs = make("div");
    this.box.append(make("legend", "", title), this.pick, this.about, this.preset, this.knobs);
    this.lay();
  }

  get presets() {
    return page.info.presets?.[this.pick.value] ?? {};
  }

  // Choose a policy, as the arena recommends it.
  use({policy, settings}) {
    this.pick.value = policy;
    this.lay();
    this.turn(settings);
  }

  // Set these knobs, and all others to their defaults.
  turn(settings) {
    for (const dial of this.dials) dial.set(settings[dial.knob.name] ?? dial.normal);
    summarise();
  }

  lay() {
    const policy = page.info.policies.find(each => each.name === this.pick.value);
    this.about.textContent = policy.about ?? "";
    const names = Object.keys(this.presets);
    this.preset.hidden = !names.length;
    this.preset.replaceChildren(new Option("Default settings", ""), ...names.map(name => new Option(`Published settings: ${name}`, name)));
    this.knobs.replaceChildren();
    this.dials = dials(policy.knobs, `side-${this.number}`, this.knobs, policy.main);
    summarise();
  }

  get request() {
    return {prompt: find("prompt").value, policy: this.pick.value, ...turned(page.decode), ...turned(this.dials), ...form(), ...problem()};
  }
}

// The problem that the prompt asks, if it is still the example's: the server grades the answer.
function problem() {
  const {example} = page;
  return example && find("prompt").value === example.prompt ? {problem: {task: example.task, seed: example.seed}} : {};
}

// The template and schema for the request; raises if the schema is not JSON.
function form() {
  const text = find("schema").value.trim(), template = find("template").value;
  return {
    ...(template.trim() && {template}),
    ...(text && {response_format: {type: "json_schema", json_schema: {name: "answer", schema: JSON.parse(text)}}}),
  };
}

const racing = () => find("race").checked;
const sides = () => page.sides.filter((side, i) => i === 0 || racing());

// The settings in a line, for when they are folded away.
function summarise() {
  const all = [...sides().map(side => [side.pick.value, turned(side.dials ?? [])]), ["", turned(page.decode)]];
  const words = all.map(([name, knobs]) => [name, ...Object.entries(knobs).map(pair => pair.join(" "))].filter(Boolean).join(", "));
  find("summary").textContent = words.filter(Boolean).join(" · ");
  find("formed").textContent = [find("template").value.trim() && "template", find("schema").value.trim() && "JSON"].filter(Boolean).join(", ");
}

// ---- what the buttons do

function say(status) {
  find("status").textContent = status;
}

function complain(...messages) {
  find("error").textContent = messages.join("\n");
  find("error").hidden = !messages.length;
}

async function generate() {
  complain();
  if (!find("prompt").value.trim()) {
    complain("Write a prompt first, or take an example.");
    find("prompt").focus();
    return;
  }
  const wrong = [...page.decode, ...sides().flatMap(side => side.dials)].find(dial => !dial.input.validity.valid);
  if (wrong) {
    complain(wrong.mistake);
    wrong.reveal();
    return;
  }
  try {
    form();
  } catch (error) {
    complain(`The schema must be a JSON schema: ${error.message}.`);
    find("form").open = true;
    find("schema").focus();
    return;
  }
  const running = page.running = new AbortController();
  const requests = sides().map(side => side.request);
  const decodes = requests.map(request => new Decode(request.policy));
  begin(decodes);
  const ends = await Promise.allSettled(decodes.map((decode, i) => follow(decode, requests[i], running.signal)));
  if (page.running === running) finish(decodes, complaints(requests, ends), running.signal.aborted);
}

// What went wrong, once if it went wrong for both sides alike.
function complaints(requests, ends) {
  const said = ends.map(end => end.reason?.message);
  if (new Set(said).size === 1) return said[0] ? [said[0]] : [];
  return said.map((message, i) => message && `${requests[i].policy}: ${message}`).filter(Boolean);
}

function begin(decodes) {
  find("empty").hidden = true;
  find("show").hidden = false;
  find("generate").disabled = true;
  find("stop").disabled = false;
  find("save").hidden = true;
  find("verdict").textContent = "";
  page.stage.set(decodes);
  page.stage.play(true);
  say("Decoding.");
  if (matchMedia("(max-width: 56rem)").matches) find("stage").scrollIntoView({block: "start"});
}

function finish(decodes, failed, stopped) {
  page.running = null;
  find("generate").disabled = false;
  find("stop").disabled = true;
  find("save").hidden = !decodes.some(decode => decode.last);
  const started = decodes.some(decode => decode.start);
  find("show").hidden = !started;
  find("empty").hidden = started;
  complain(...failed);
  const words = verdict(decodes);
  find("verdict").textContent = words;
  say(stopped ? "Stopped." : failed.length ? "" : [...decodes.length < 2 ? decodes.map(told) : [], words].filter(Boolean).join(" "));
}

const told = decode => `Done: ${decode.end.tokens.length} tokens in ${steps(decode.last)}, ${decode.counts(decode.last).tpf.toFixed(2)} tokens per forward.`;
const right = decode => decode.end.grade?.correct;

// The result in a sentence or two. Fewer steps mean little unless the answers are compared, too.
function verdict(decodes) {
  if (!decodes.every(decode => decode.end)) return "";
  const [one, two] = decodes;
  if (!two) return right(one) === undefined ? "" : right(one) ? "The answer is right." : `The answer is wrong.${expected(one)}`;
  const apart = two.last - one.last;
  const pace = apart === 0 ? `Both need ${steps(one.last)}.` : `${(apart > 0 ? one : two).name} needs ${steps(Math.abs(apart))} fewer.`;
  const same = one.end.text === two.end.text;
  if (right(one) === undefined) return `${pace} The answers ${same ? "are the same" : "differ"}.`;
  const grades = right(one) === right(two) ? `both are ${right(one) ? "right" : "wrong"}` : `${one.name} is ${right(one) ? "right" : "wrong"}, ${two.name} is ${right(two) ? "right" : "wrong"}`;
  return `${pace} The answers ${same ? "are the same" : "differ"}; ${grades}.${right(one) && right(two) ? "" : expected(one)}`;
}

// What a story should end with.
function expected(decode) {
  const last = decode.end.grade.reference.match(/The answer is \d+\./);
  return last ? ` Expected: “${last[0]}”` : "";
}

async function save() {
  try {
    const decodes = page.stage.decodes.filter(decode => decode.start);
    const answer = await ask("v1/replay", {traces: decodes.map(decode => decode.lines)});
    const link = make("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = `tacg-${decodes.map(decode => decode.name.replace(/[^\w+.-]+/g, "_")).join("-")}.html`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    say("The replay is saved.");
  } catch (error) {
    complain(error.message);
  }
}

function reset() {
  for (const dial of [...page.decode, ...page.sides.flatMap(side => side.dials)]) dial.set(dial.normal);
  summarise();
}

function take(example) {
  page.example = example;
  find("prompt").value = example.prompt;
  find("template").value = "";
  find("holed").hidden = !example.template;
  for (const button of find("examples").children) button.classList.toggle("chosen", button.dataset.task === example.task);
  advise(example.task);
  for (const dial of page.decode)
    if (example.settings?.[dial.knob.name] !== undefined) dial.set(example.settings[dial.knob.name]);
  summarise();
}

// Another problem of the same task.
async function another() {
  try {
    const {task, seed} = page.example;
    take(await (await ask(`v1/tacg/example/${task}?seed=${seed + 1}`)).json());
    complain();
  } catch (error) {
    complain(error.message);
  }
}

// The arena's choice for a task: the most accurate decoder, then faster ones.
function advise(task) {
  const box = find("advice"), offers = (page.info.recommended?.[task] ?? []).filter((each, i, all) => all.findIndex(other => other.policy === each.policy) === i);
  box.hidden = !offers.length;
  box.replaceChildren("Best in the arena: ", ...offers.map(offer => {
    const [low, high] = offer.accuracy_ci.map(value => Math.round(100 * value));
    const button = Object.assign(make("button", "", offer.policy), {type: "button", onclick: () => page.sides[0].use(offer)});
    button.title = `On ${offer.n} problems: ${(100 * offer.accuracy).toFixed(1)} % right [${low}, ${high}] in ${offer.forwards.toFixed(1)} forwards`;
    const line = make("span", "offer");
    line.append(button, ` ${Math.round(100 * offer.accuracy)} % in ${offer.forwards.toFixed(0)} forwards`);
    return line;
  }));
}

// ⟨8⟩ is hard to type, so <8> becomes one.
function holes() {
  const box = find("template"), at = box.selectionStart, text = box.value.replaceAll(/<(\d+)>/g, "⟨$1⟩");
  if (text !== box.value) {
    box.value = text;
    box.setSelectionRange(at, at);
  }
  summarise();
}

function insertHole() {
  const box = find("template");
  box.setRangeText("⟨8⟩", box.selectionStart, box.selectionEnd, "end");
  box.focus();
  summarise();
}

function toggleRace() {
  page.sides[1].box.hidden = !racing();
  summarise();
}

// ---- the start

function build(info) {
  page.info = info;
  find("model").textContent = info.model;
  find("knows").textContent = info.knows ? `${info.model} knows ${info.knows}, and nothing else. Take an example, or change one:` : "";
  find("schema").oninput = summarise;
  find("template").oninput = holes;
  document.title = `tacg · ${info.model}`;
  const names = info.policies.map(policy => policy.name);
  const first = [info.defaults?.policy, "tacg", names[0]].find(name => names.includes(name));
  const second = ["confidence", ...names].find(name => names.includes(name) && name !== first) ?? first;
  page.sides = [new Side("Policy", 0, first), new Side("Against", 1, second)];
  find("sides").replaceChildren(...page.sides.map(side => side.box));
  page.decode = dials(info.decode, "decode", find("decode"), "gen_length");
  const buttons = info.examples.map(example => Object.assign(make("button", "", example.task), {type: "button", onclick: () => take(example)}));
  info.examples.forEach((example, i) => { buttons[i].dataset.task = example.task; });
  const next = Object.assign(make("button", "next", "↻ Another"), {type: "button", onclick: another, title: "a new problem of the same kind"});
  find("examples").replaceChildren(...buttons, ...info.examples.length ? [next] : []);
  toggleRace();
  if (!find("prompt").value && info.examples.length) take(info.examples[0]);
  find("generate").disabled = false;
}

async function open() {
  try {
    const answer = await ask("v1/tacg/info");
    build(await answer.json());
    find("locked").hidden = true;
    complain();
  } catch (error) {
    const locked = error.status === 401;
    find("locked").hidden = !locked;
    complain(...!locked ? [error.message] : key() ? ["That key is wrong."] : []);
  }
}

function unlock() {
  try { sessionStorage.setItem("tacg-key", find("key").value); } catch { /* the field itself remembers */ }
  open();
}

page.stage = new Stage(find("show"), find("legend"));
page.stage.onshow = () => { find("verdict").hidden = !page.stage.over || page.stage.now < page.stage.ready; };  // not before the finish
find("settings").open = !matchMedia("(max-width: 56rem)").matches;
find("ask").onsubmit = event => { event.preventDefault(); if (!page.running) generate(); };
find("prompt").onkeydown = event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("ask").requestSubmit(); };
find("key").onkeydown = event => { if (event.key === "Enter") { event.preventDefault(); unlock(); } };
find("stop").onclick = () => page.running?.abort();
find("unlock").onclick = unlock;
find("race").onchange = toggleRace;
find("reset").onclick = reset;
find("save").onclick = save;
find("hole").onclick = insertHole;
find("holed").onclick = () => { find("template").value = page.example.template; summarise(); };
open();
