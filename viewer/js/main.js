/** Puts the page together: the model, the input, the run that all views share, the tabs. */

import { byId } from "./dom.js";
import { createMessages, Told } from "./messages.js";
import { savePng, saveSvg } from "./save.js";
import { createService, latest } from "./service.js";
import { CHOICES, createState, SHARED } from "./state.js";
import { createStrip } from "./strip.js";
import { createTabs } from "./tabs.js";
import { followTheme, inkOf } from "./theme.js";
import { countOf, idsOf } from "./tokens.js";
import { VIEWS } from "./views/index.js";

const EXAMPLE = "The river begins here, and the sea is where it ends. The water of the river is cold.";
const INPUTS = ["kind", "text", "ids"];

const state = createState(Object.assign({}, SHARED, ...VIEWS.map((view) => view.params ?? {})),
  Object.assign({ tab: VIEWS.map((view) => view.id) }, CHOICES, ...VIEWS.map((view) => view.choices ?? {})));
state.fromHash(location.hash);
const messages = createMessages();
const theme = followTheme(state, byId("theme"));
const service = createService({
  onWait: (detail, seconds) => messages.wait(detail, seconds),
  askKey: (refusal) => messages.askKey(refusal),
  onAnswer: () => messages.reached(),
  onOtherModel: (name) => {
    if (!app.model) return; // noticed already
    app.model = app.run = null;
    tabs.forget();
    tabs.show();
    news = new Told("Another model", `the service has ${name} now; all of this page is drawn anew with it`);
    open();
  },
});
const strip = createStrip(byId("strip"), { theme, onPick: (token) => state.set({ token }) });
const runs = latest();
let news = null; // to be told as soon as the model is known, whoever asked for it last
let drafts = {}; // what was typed for a kind of input, and not shown yet, while the field holds the other kind

/** What every view gets; README.md of the views tells of each name. */
const app = { service, state, strip, theme, ink: inkOf, model: null, run: null, guard };
const tabs = createTabs(VIEWS, app);

/** Do some asynchronous work of a view; what goes wrong is shown, and what was given up is not wrong. */
async function guard(work) {
  messages.work(1);
  try {
    return await work();
  } catch (error) {
    if (error?.name === "AbortError") return undefined;
    if (!(error instanceof Told)) console.error(error);
    messages.show(error);
    return undefined;
  } finally {
    messages.work(-1);
    messages.rest(traffic());
  }
}

function traffic() {
  const { calls, bytes, usage } = service.traffic;
  const size = bytes < 1e6 ? `${Math.round(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
  const pass = usage?.compute_ms ? `; the last pass took ${Math.round(usage.compute_ms)} ms` : "";
  return calls ? `${app.run ? `${countOf(app.run.n)}; ` : ""}${calls} calls, ${size} received${pass}` : "";
}

/** Take the input to the service; the views follow when its tokens are known. */
function start() {
  if (!app.model) return open();
  const signal = runs.next();
  messages.clear();
  document.body.classList.add("stale");
  performance.mark("headwater:start");
  return guard(async () => {
    const name = currentInput();
    if (!app.model.tokenizer && state.get("text") && !state.get("ids")) {
      throw new Told("This model takes no text", `it has no tokenizer to make “${state.get("text").slice(0, 60)}” into tokens; give token ids`);
    }
    const input = state.get("kind") === "ids" ? { tokens: idsOf(state.get("ids")) } : { text: state.get("text") };
    // one row of what enters the first layer: no layer runs for it, and the answer names the tokens
    const { tokens } = await service.forward({ ...input, outputs: [{ name: "embeddings", rows: [0] }] }, { signal });
    app.run = { ids: tokens.ids, strings: tokens.strings ?? null, n: tokens.ids.length, signal, input: name };
    document.body.classList.remove("stale");
    if (chosenKind() !== state.get("kind") && !byId("field").value) fillField(); // its ids were not known yet
    strip.set(app.run);
    tabs.newRun();
    state.limitBy(within);
    strip.pick(state.get("token"));
    tabs.changed(new Set());
  });
}

/** Values within the model and the run, whatever a link says; a run of another input bounds nothing. */
function within(values) {
  if (!app.model) return values;
  const next = { ...values }, atMost = (name, most) => { next[name] = Math.min(next[name], most); };
  atMost("layer", app.model.layers - 1);
  atMost("head", app.model.heads - 1);
  if (!app.model.tokenizer) next.kind = "ids";
  if (app.run?.input === inputOf(values)) for (const name of ["token", "row", "key"]) atMost(name, app.run.n - 1);
  return next;
}

function inputOf({ kind, text, ids }) {
  return kind === "ids" ? `ids ${ids}` : `text ${text}`;
}

function currentInput() {
  return inputOf(Object.fromEntries(INPUTS.map((name) => [name, state.get(name)])));
}

function showInput() {
  const kind = state.get("kind");
  for (const radio of document.querySelectorAll("input[name=kind]")) {
    radio.checked = radio.value === kind;
    radio.disabled = radio.value === "text" && app.model !== null && !app.model.tokenizer;
  }
  drafts = kind === "ids" ? { text: drafts.text } : {};
  fillField();
}

/** Fill the field for the kind that is chosen: what was typed, else what is shown; of a shown text its own ids. */
function fillField() {
  const kind = chosenKind(), field = byId("field");
  const idsOfText = () => (app.run?.input === currentInput() ? app.run.ids.join(", ") : "");
  field.value = drafts[kind] ?? (kind === "ids" && state.get("kind") === "text" ? idsOfText() : state.get(kind));
  field.setAttribute("aria-label", kind === "ids" ? "Token ids" : "Text");
  field.placeholder = kind === "ids" ? "whole numbers, with commas or spaces between" : "a text";
}

function chosenKind() {
  return new FormData(byId("input")).get("kind");
}

function writeLink() {
  history.replaceState(null, "", `#${state.toHash()}`);
}

function listen() {
  const form = byId("input"), field = byId("field");
  const submit = () => {
    const kind = chosenKind();
    const before = currentInput();
    state.set({ kind, [kind]: field.value });
    if (currentInput() === before) start();
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  form.addEventListener("change", (event) => {
    if (event.target.name !== "kind") return;
    drafts[event.target.value === "ids" ? "text" : "ids"] = field.value || undefined;
    fillField();
  });
  state.subscribe((changed) => {
    if (INPUTS.some((name) => changed.has(name) && (name === "kind" || name === state.get("kind")))) {
      showInput();
      start();
    }
    if (changed.has("token")) strip.pick(state.get("token"));
    tabs.changed(changed);
    writeLink();
  });
  addEventListener("hashchange", () => {
    if (location.hash.slice(1) === state.toHash()) return;
    state.fromHash(location.hash, exampleFor(location.hash));
    writeLink(); // what it names wrongly leaves it
  });
  addEventListener("visibilitychange", () => document.hidden || service.suspect()); // who knows how long this was in the background
  byId("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      messages.rest("The link is copied; it holds the whole view.");
    } catch {
      messages.rest("This browser lets no page copy here: take the link from the address bar.");
    }
  });
  for (const [id, save] of [["save-png", savePng], ["save-svg", saveSvg]]) {
    byId(id).addEventListener("click", () => guard(async () => {
      const figure = tabs.figure();
      if (!figure) throw new Told("Not saved", "there is nothing to save yet");
      const name = ["headwater", app.model.name, state.get("tab"), `layer-${state.get("layer")}`, `head-${state.get("head")}`];
      await save(figure, name.join("-").replace(/[^\w.-]+/g, "_"));
    }));
  }
}

function facts({ name, layers, heads, kv_heads, d_model, causal }) {
  const grouped = kv_heads === heads ? "" : ` (${kv_heads} key/value)`;
  return `${name}: ${layers} layers, ${heads} heads${grouped}, width ${d_model}, ${causal ? "causal" : "bidirectional"}`;
}

/** The input for a link that names none, as values of the state; nothing for one that does, or while the model is not known. */
function exampleFor(hash) {
  const link = new URLSearchParams(hash.slice(1));
  if (link.has("text") || link.has("ids") || !app.model) return {};
  if (app.model.tokenizer) return { kind: "text", text: EXAMPLE };
  return { kind: "ids", ids: Array.from({ length: 12 }, (_, i) => Math.min(i + 1, app.model.vocab_size - 1)).join(", ") };
}

/** Ask which model there is, and begin with it; where that fails, the next input asks again. */
function open() {
  const signal = runs.next();
  messages.clear();
  document.body.classList.add("stale");
  return guard(async () => {
    app.model = await service.model(signal);
    byId("facts").textContent = facts(app.model);
    document.title = `${app.model.name} – Headwater`;
    const before = currentInput();
    state.set(exampleFor(location.hash));
    state.limitBy(within);
    showInput();
    writeLink();
    tabs.show();
    if (currentInput() === before) start(); // another input has started by itself
    if (news) messages.show(news);
    news = null;
  });
}

showInput();
listen();
tabs.show();
open();
