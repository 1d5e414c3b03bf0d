/** The view of the residual stream: its norm at each token from layer to layer, and what it would say at each layer. */

import { el, segmented, svg } from "../dom.js";
import { frame, words } from "../figure.js";
import { latest } from "../service.js";
import { zoom } from "../theme.js";
import { label } from "../tokens.js";
import { createCursor } from "./cursor.js";
import { createDetail } from "./stream-detail.js";
import { brief, drawGrid, lineName } from "./stream-grid.js";
import { columnsOf, norms, predictions, statesOf, statesWithin, TOP, vocabularyOf } from "./stream-states.js";
import { marginShade, normShade, rankOf, RANK_SHADES, streamLegend } from "./stream-shades.js";

export default {
  id: "stream",
  title: "Stream",
  help: "Table: arrows move the cursor, Enter picks token and layer, Page Up and Down show other tokens. Tokens: left and right.",
  params: { "stream.mode": "norms", "stream.from": 0, "stream.colour": "final" },
  choices: { "stream.mode": ["norms", "predictions"], "stream.colour": ["final", "margin"] },
  create,
};

const CELLS = { norms: [16, 46], numbers: [26, 46], predictions: [62, 96] }; // pixels of a cell's width, least and most
const NUMBERS = 24; // norms of so many tokens stand in their cells
const LEGEND = { wide: [470, 32], narrow: [290, 48] };

function create(root, app) {
  const { state, model, service, strip } = app;
  const loading = latest(), speaks = "logits" in model.points;
  let held = null; // {run, columns, states} that came last: the few tokens of predictions are mostly among those of the norms
  let shown = null; // {mode, run, columns, states, lines | tops and names}

  const mode = segmented("What is shown", speaks ? { norms: "Norms", predictions: "Predictions" } : { norms: "Norms" },
    state.get("stream.mode"), (chosen) => state.set({ "stream.mode": chosen }));
  const colour = segmented("Colours", { final: "rank of the last layer's choice", margin: "lead of the first" },
    state.get("stream.colour"), (chosen) => state.set({ "stream.colour": chosen }));
  const key = el("div", { class: "legend" }), note = el("p", { class: "note" });
  const readout = el("p", { class: "readout", id: "stream-readout", "aria-live": "polite" });
  const table = el("div", { class: "sheet", tabindex: 0, role: "application", "aria-label": "Layers and tokens", "aria-describedby": "stream-readout" });
  const before = el("button", { type: "button", class: "quiet", onclick: () => page(-1) }, "‹ tokens before");
  const after = el("button", { type: "button", class: "quiet", onclick: () => page(1) }, "tokens after ›");
  const pages = el("div", { class: "controls", hidden: true }, before, el("span", { class: "muted" }), after);
  const side = el("div", { class: "stream-side" });
  root.append(el("div", { class: "stream" }, el("div", { class: "controls" }, mode, colour, key), note, readout,
    el("div", { class: "stream-more" }, el("div", { class: "stream-main" }, table, pages), side)));
  const cursor = createCursor(table, { onPoint: point, onPick: pick, onPage: page });
  const detail = createDetail(side, app);

  const look = () => ({ theme: app.theme(), ink: app.ink() });
  const modeNow = () => (speaks && state.get("stream.mode") === "predictions" ? "predictions" : "norms");
  const most = () => columnsOf(modeNow(), model);

  function columnsNow() {
    const { n } = app.run, from = Math.min(state.get("stream.from"), Math.max(0, n - most()));
    return [from, Math.min(n, from + most())];
  }

  function page(step) {
    state.set({ "stream.from": Math.min(Math.max(0, app.run.n - most()), Math.max(0, columnsNow()[0] + step * most())) });
  }

  function pick({ row, column }) {
    const token = shown.columns[0] + column;
    state.set(row === 0 ? { token } : { token, layer: row - 1 });
  }

  function load() {
    const { run } = app, signal = loading.next(run.signal), columns = columnsNow(), now = modeNow();
    table.setAttribute("aria-busy", "true");
    return app.guard(async () => {
      if (!statesWithin(held, model, run, columns)) {
        held = { run, columns, states: await statesOf(service, model, run, columns, signal) };
      }
      const states = statesWithin(held, model, run, columns);
      const next = { mode: now, run, columns, states, d: model.d_model };
      if (now === "norms") next.lines = states.map((one) => norms(one, model.d_model));
      else {
        const name = `predictions ${run.ids} ${columns}`;
        next.tops = await predictions(service, model, states, name, signal);
        next.names = await vocabularyOf(service, model, next.tops.flatMap(({ indices }) => [...indices]), signal);
      }
      shown = next;
      table.removeAttribute("aria-busy");
      draw();
      performance.mark("headwater:stream");
    });
  }

  const nameOf = (id) => label(shown.names.run, shown.names.at.get(id));
  const topOf = (i, j) => {
    const { values, indices } = shown.tops[i], from = TOP * j;
    return Array.from({ length: Math.min(TOP, model.vocab_size) }, (_, k) => ({ id: indices[from + k], logit: values[from + k] }));
  };

  /** What `drawGrid` needs of what is there. */
  function contents() {
    const common = {
      run: shown.run, columns: shown.columns, lines: model.layers + 1, cell: CELLS[shown.mode],
      chosen: { line: state.get("layer") + 1, token: state.get("token") }, label: `${shown.mode} of ${model.name}`,
    };
    if (shown.mode === "norms") {
      const shade = normShade(shown.lines), few = shown.columns[1] - shown.columns[0] <= NUMBERS;
      const text = (i, j, most) => (few ? brief(shown.lines[i][j], most) : null);
      return { ...common, cell: few ? CELLS.numbers : CELLS.norms, shade: (i, j) => shade(shown.lines[i][j]), text };
    }
    const shade = state.get("stream.colour") === "margin" ? (i, j) => marginShade(topOf(i, j))
      : (i, j) => RANK_SHADES[rankOf(topOf(model.layers, j)[0].id, topOf(i, j))];
    return { ...common, shade, text: (i, j) => nameOf(topOf(i, j)[0].id) };
  }

  function draw() {
    const made = drawGrid(contents(), { width: (table.clientWidth || 700) / zoom() }, look());
    made.node.style.width = `${made.geometry.width * zoom()}px`;
    cursor.show(made, app.ink());
    const narrow = root.clientWidth / zoom() < LEGEND.wide[0];
    const node = frame(...LEGEND[narrow ? "narrow" : "wide"], app.ink(), "colour scale");
    node.append(legendAt(20, 2, narrow));
    key.replaceChildren(node);
    detail.show(shown, state.get("token"), state.get("layer") + 1);
  }

  function legendAt(x, y, narrow = false) {
    const kind = shown.mode === "norms" ? "norms" : state.get("stream.colour") === "margin" ? "margin" : "final";
    return streamLegend(x, y, kind, shown.lines, { ...look(), narrow });
  }

  function point(at) {
    strip.clear();
    if (!at || !shown) {
      readout.textContent = "Point at a cell for its numbers; a click picks its token and layer.";
      return;
    }
    const token = shown.columns[0] + at.column, place = `${lineName(at.row)}, token ${token} “${label(shown.run, token)}”: `;
    strip.light([], "linear", { query: token });
    if (shown.mode === "norms") {
      readout.replaceChildren(place, "norm ", el("output", { "data-line": at.row, "data-token": token }, String(Number(shown.lines[at.row][at.column].toPrecision(7)))));
      return;
    }
    const top = topOf(at.row, at.column);
    readout.replaceChildren(place, ...top.flatMap(({ id, logit }, k) => [
      k ? ", " : "", `“${nameOf(id)}” `, el("output", { "data-line": at.row, "data-token": token, "data-id": id, "data-rank": k + 1 }, logit.toFixed(2)),
    ]), " (logits)");
  }

  function describe() {
    const { n } = app.run, [from, to] = columnsNow(), through = "final_norm" in model.points ? "the final norm and " : "";
    mode.choose(modeNow());
    mode.hidden = !speaks;
    colour.hidden = modeNow() === "norms";
    colour.choose(state.get("stream.colour"));
    note.textContent = modeNow() === "norms"
      ? `The Euclidean norm of the residual stream at each token: X is what enters the first layer, the others what leaves a layer${model.points["layers.0.resid_post"].normed ? ", after its norm" : ""}.${speaks ? "" : " This model has no unembedding, so it predicts no tokens."}`
      : `What each layer's stream would say through ${through}the unembedding: the token with the largest logit${model.causal ? ", as the next one" : ""}. Probabilities need all logits, and are fetched for the cell that is picked.`;
    pages.hidden = to - from === n;
    pages.children[1].textContent = `tokens ${from} to ${to - 1} of ${n}`;
    before.disabled = from === 0;
    after.disabled = to === n;
  }

  let width = 0;
  new ResizeObserver(([{ contentRect }]) => {
    if (!contentRect.width || Math.abs(contentRect.width - width) < 2) return;
    width = contentRect.width;
    if (shown) draw();
  }).observe(table);

  return {
    update(changed) {
      const any = (...names) => names.some((name) => changed.has(name));
      if (any("run")) {
        shown = null;
        cursor.clear();
        detail.clear();
      }
      const [from, to] = columnsNow(), token = state.get("token");
      // a link that names tokens shows those
      if (any("token", "run", "stream.mode") && !(any("run") && state.get("stream.from")) && (token < from || token >= to)) {
        state.set({ "stream.from": Math.max(0, Math.min(token - Math.floor(most() / 2), app.run.n - most())) }); // comes here again
      }
      describe();
      if (any("run", "stream.mode", "stream.from")) load();
      else if (shown && any("tab", "theme", "token", "layer", "stream.colour")) draw();
    },
    leave() {
      loading.stop();
      detail.leave();
    },
    figure,
  };

  /** The table with its legend, and below the lines of the norms. */
  function figure() {
    if (!shown) return null;
    const style = look(), { node: grid, geometry } = drawGrid(contents(), { width: 1200 }, style), chart = detail.chart(shown, 640, 300);
    const whole = frame(Math.max(geometry.width + 20, 660), 70 + geometry.height + (chart ? 340 : 10), style.ink, `residual stream of ${model.name}`);
    const title = shown.mode === "norms" ? "norm of the residual stream" : "largest logit of each layer's stream";
    whole.append(words(20, 26, `${model.name}: ${title}`, { fill: style.ink.ink, size: 15, weight: 600 }), legendAt(20, 38),
      svg("g", { transform: "translate(0 76)" }, ...[...grid.childNodes].slice(1)));
    if (chart) {
      chart.setAttribute("transform", `translate(20 ${90 + geometry.height})`);
      whole.append(chart);
    }
    return whole;
  }
}
