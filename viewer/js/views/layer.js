/** The view of a layer: the textbook's diagram of it, and the numbers of the point whose box is open. */

import { el, numberSelect, segmented, svg } from "../dom.js";
import { frame, words } from "../figure.js";
import { latest } from "../service.js";
import { zoom } from "../theme.js";
import { countOf, label } from "../tokens.js";
import { createCursor } from "./cursor.js";
import { drawDiagram } from "./layer-diagram.js";
import { formulaOf, headOf, isMap, isPerHead, layout, shapeOf } from "./layer-points.js";
import { exact, visibility } from "./maps.js";
import { drawSheet, sheetLegend } from "./sheet.js";

const ROWS = 32; // of a point at a time
const FIRST = "attn_probs";

export default {
  id: "layer",
  title: "Layer",
  help: "Diagram: up and down open a point, left and right change the layer. Numbers: arrows move the cursor (Shift: by ten), Page Up and Down show other rows, Enter picks the token.",
  params: { "layer.point": FIRST, "layer.from": 0 },
  create,
};

function create(root, app) {
  const { state, model, service, strip } = app;
  const loading = latest();
  let shown = null; // the point whose numbers are there: {sheet, geometry, kind, layer, head}

  const layer = numberSelect("Layer", model.layers, state.get("layer"), (chosen) => state.set({ layer: chosen }));
  const head = numberSelect("Head", model.heads, state.get("head"), (chosen) => state.set({ head: chosen }));
  const curve = segmented("Colours", { sqrt: "√ scale", linear: "linear" }, state.get("curve"), (chosen) => state.set({ curve: chosen }));
  const diagram = el("div", { class: "layer-diagram", role: "group", "aria-label": "Diagram of the layer" });
  const title = el("h2", {}), about = el("p", { class: "note" }), sizes = el("p", { class: "note" });
  const key = el("div", { class: "legend" }), readout = el("p", { class: "readout", id: "layer-readout", "aria-live": "polite" });
  const numbers = el("div", { class: "sheet", tabindex: 0, role: "application", "aria-label": "Numbers", "aria-describedby": "layer-readout" });
  const before = el("button", { type: "button", class: "quiet", onclick: () => page(-1) }, "‹ rows before");
  const after = el("button", { type: "button", class: "quiet", onclick: () => page(1) }, "rows after ›");
  const pages = el("div", { class: "controls", hidden: true }, before, el("span", { class: "muted" }), after);
  root.append(el("div", { class: "layer" },
    el("div", { class: "layer-left" }, el("div", { class: "controls" }, layer), sizes, diagram),
    el("div", { class: "layer-right" }, title, about, el("div", { class: "controls" }, head, curve, key), readout, numbers, pages)));
  const cursor = createCursor(numbers, { onPoint: point, onPick: ({ row }) => state.set({ token: shown.sheet.rows[0] + row }), onPage: page });

  const look = () => ({ theme: app.theme(), curve: state.get("curve"), ink: app.ink() });
  const pointOf = (kind) => `layers.${state.get("layer")}.${kind}`;

  /** The kind of point that is open, whatever the link said. */
  function chosen() {
    const kind = state.get("layer.point");
    return pointOf(kind) in model.points ? kind : FIRST;
  }

  function rowsOf(n) {
    const from = Math.min(state.get("layer.from"), Math.max(0, n - ROWS));
    return [from, Math.min(n, from + ROWS)];
  }

  function page(step) {
    const most = Math.max(0, app.run.n - ROWS);
    state.set({ "layer.from": Math.min(most, Math.max(0, rowsOf(app.run.n)[0] + step * ROWS)) });
  }

  diagram.addEventListener("click", (event) => {
    const box = event.target.closest("[data-kind]");
    if (box) open(box.dataset.kind);
  });
  diagram.addEventListener("keydown", (event) => {
    const box = event.target.closest("[data-kind]");
    if (!box || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      open(box.dataset.kind);
      return;
    }
    const down = { ArrowUp: -1, ArrowDown: 1 }[event.key], across = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!down && !across) return;
    event.preventDefault();
    if (down) {
      const kinds = layout(model, state.get("layer"), app.run.n).boxes.map(({ kind }) => kind);
      open(kinds[Math.min(kinds.length - 1, Math.max(0, kinds.indexOf(box.dataset.kind) + down))]);
    } else state.set({ layer: Math.min(model.layers - 1, Math.max(0, state.get("layer") + across)) });
    diagram.querySelector('[tabindex="0"]')?.focus();
  });

  function open(kind) {
    state.set({ "layer.point": kind });
    diagram.querySelector('[tabindex="0"]')?.focus();
  }

  function drawing() {
    const { ink } = look(), { group, width, height } = drawDiagram(model, state.get("layer"), app.run.n, chosen(), ink);
    const node = frame(width, height, ink, `layer ${state.get("layer")} of ${model.name}`);
    node.setAttribute("role", "group"); // its boxes are buttons
    node.append(group);
    node.style.width = `${width * zoom()}px`;
    const focused = diagram.contains(document.activeElement);
    diagram.replaceChildren(node);
    if (focused) diagram.querySelector('[tabindex="0"]')?.focus();
    const { d_model: d, heads, kv_heads: kv, d_k, d_v } = model;
    sizes.textContent = `N = ${countOf(app.run.n)}, d = ${d}, A = ${heads}${kv === heads ? "" : `, A_kv = ${kv}`}, d_k = ${d_k}${d_v === d_k ? "" : `, d_v = ${d_v}`}`;
  }

  function describe() {
    const kind = chosen(), { normed } = model.points[pointOf(kind)], n = app.run.n;
    title.replaceChildren(formulaOf(kind, model, state.get("layer")), el("small", {}, pointOf(kind)));
    const shared = (kind === "k" || kind === "v") && model.kv_heads < model.heads
      ? ` Key/value head ${headOf(kind, model, state.get("head"))}, shared by ${model.heads / model.kv_heads} query heads.` : "";
    about.textContent = `${shapeOf(kind, model, n).join(" × ")}${isPerHead(kind) ? `, head ${headOf(kind, model, state.get("head"))} below` : ""}${normed ? "; out of a norm" : ""}.${shared}`;
    head.hidden = !isPerHead(kind);
    const [from, to] = rowsOf(n);
    pages.hidden = n <= ROWS;
    pages.children[1].textContent = `rows ${from} to ${to - 1} of ${n}`;
    before.disabled = from === 0;
    after.disabled = to === n;
  }

  function load() {
    const run = app.run, signal = loading.next(run.signal), kind = chosen(), i = state.get("layer");
    const rows = rowsOf(run.n), h = headOf(kind, model, state.get("head"));
    numbers.setAttribute("aria-busy", "true");
    return app.guard(async () => {
      const output = { name: `layers.${i}.${kind}`, as: "point", rows: { start: rows[0], stop: rows[1] } };
      if (isPerHead(kind)) output.heads = [h];
      // no row that is shown sees a key behind the last of them
      if (isMap(kind) && model.causal && rows[1] < run.n) output.keys = { start: 0, stop: rows[1] };
      const { point: tensor } = await service.outputs(run, [output], { signal });
      const sees = isMap(kind) ? visibility(model, i) : () => true;
      const masked = isMap(kind) && (model.causal || model.points[output.name].window !== null);
      show({
        kind, layer: i, head: isPerHead(kind) ? h : null,
        sheet: {
          run, rows, columns: tensor.shape.at(-1), values: tensor.data, unit: kind === "attn_probs", tokensAcross: isMap(kind), sees, masked,
          label: `layers.${i}.${kind}`,
        },
      });
      numbers.removeAttribute("aria-busy");
      performance.mark("headwater:layer");
    });
  }

  function show(next) {
    const room = { width: (numbers.clientWidth || 640) / zoom(), height: Math.max(360, (innerHeight - 330) / zoom()) };
    const made = drawSheet(next.sheet, room, look());
    shown = { ...next, geometry: made.geometry };
    made.node.style.width = `${made.geometry.width * zoom()}px`;
    cursor.show(made, app.ink());
    const node = frame(290, 32, app.ink(), "colour scale");
    node.append(sheetLegend(30, 2, next.sheet, made.geometry.scale, look()));
    key.replaceChildren(node);
  }

  function point(at) {
    if (!shown) return;
    const { sheet } = shown, { run, rows, columns, values, sees } = sheet;
    strip.clear();
    if (!at) {
      readout.textContent = extremes();
      return;
    }
    const row = rows[0] + at.row, value = values[at.row * columns + at.column], name = (i) => `${i} “${label(run, i)}”`;
    readout.replaceChildren(
      sheet.tokensAcross ? `query ${name(row)} → key ${name(at.column)}: ` : `token ${name(row)}, column ${at.column}: `,
      el("output", { "data-row": row, "data-column": at.column }, sees(row, at.column) ? exact(value) : "masked"));
    if (sheet.unit) {
      strip.light(Array.from({ length: columns }, (_, i) => [i, values[at.row * columns + i]]), state.get("curve"), { query: row, key: at.column });
    } else strip.light([], state.get("curve"), { query: row, key: sheet.tokensAcross ? at.column : null });
  }

  /** Where the largest number of those that are there is. */
  function extremes() {
    const { run, rows, columns, values } = shown.sheet;
    let best = 0;
    values.forEach((value, i) => { if (Number.isFinite(value) && Math.abs(value) > Math.abs(values[best])) best = i; });
    const row = rows[0] + Math.floor(best / columns), several = shown.geometry.bins < columns
      ? ` A pixel shows the strongest of ${Math.ceil(columns / shown.geometry.bins)} columns.` : "";
    return `Largest here: ${exact(values[best])}, at ${row} “${label(run, row)}”, ${shown.sheet.tokensAcross ? `key ${best % columns} “${label(run, best % columns)}”` : `column ${best % columns}`}.${several}`;
  }

  let width = 0;
  new ResizeObserver(([{ contentRect }]) => {
    if (!contentRect.width || Math.abs(contentRect.width - width) < 2) return;
    width = contentRect.width;
    if (shown) show(shown);
  }).observe(numbers);

  return {
    update(changed) {
      const any = (...names) => names.some((name) => changed.has(name));
      layer.choose(state.get("layer"));
      head.choose(state.get("head"));
      curve.choose(state.get("curve"));
      // a link that names rows shows those
      if (any("token", "run") && !(any("run") && state.get("layer.from")) && !inside(state.get("token"))) {
        state.set({ "layer.from": Math.max(0, Math.min(state.get("token"), app.run.n - ROWS)) }); // comes here again
      }
      if (any("run", "layer", "layer.point", "theme")) drawing();
      if (any("run")) {
        cursor.clear();
        shown = null;
      }
      describe();
      if (any("run", "layer", "head", "layer.point", "layer.from")) load();
      else if (any("theme", "curve") && shown) show(shown);
    },
    leave: () => loading.stop(),
    figure,
  };

  function inside(token) {
    const [from, to] = rowsOf(app.run.n);
    return token >= from && token < to;
  }

  /** The diagram, and beside it the numbers. */
  function figure() {
    if (!shown) return null;
    const style = look(), { ink } = style, { group, width, height } = drawDiagram(model, shown.layer, app.run.n, shown.kind, ink);
    const { node: sheet, geometry } = drawSheet(shown.sheet, { width: 760, height: height - 80 }, style);
    const whole = frame(width + geometry.width + 40, Math.max(height, geometry.height + 110) + 40, ink, `layer ${shown.layer} of ${model.name}`);
    const of = shown.head === null ? "" : `, head ${shown.head}`;
    group.setAttribute("transform", "translate(0 34)");
    whole.append(words(20, 26, `${model.name}, layer ${shown.layer}: ${formulaOf(shown.kind, model, shown.layer)}${of}`, { fill: ink.ink, size: 15, weight: 600 }),
      group, sheetLegend(width + 40, 50, shown.sheet, geometry.scale, style),
      svg("g", { transform: `translate(${width + 20} 100)` }, ...[...sheet.childNodes].slice(1)));
    return whole;
  }
}
