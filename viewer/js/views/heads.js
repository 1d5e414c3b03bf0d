/** The view of heads: all maps small, one of them large, and where in a long input its block lies. */

import { el, numberSelect, segmented, svg } from "../dom.js";
import { frame, legend, picture, words } from "../figure.js";
import { latest, pause } from "../service.js";
import { zoom } from "../theme.js";
import { label } from "../tokens.js";
import { createGrid } from "./heads-grid.js";
import { createMap, drawMap, valueAt } from "./heads-map.js";
import { createOverview } from "./heads-overview.js";
import { blockOf, isLong, largeCells, largeMap, smallMaps } from "./maps.js";

const STEADY_MS = 120; // what is passed on the way to another head or block is not asked for
const HELD = 32; // blocks of a long text that are kept, with all heads of their layer
const SIZES = { 32: "32", 64: "64", 128: "128" };

export default {
  id: "heads",
  title: "Heads",
  help: "Arrows: head and layer in the grid, the cursor in the map (Shift: its block; Enter: pick the token), the token in the text.",
  create,
};

function create(root, app) {
  const { state, model, service, strip } = app;
  const loading = latest(), held = new Map();

  const layer = numberSelect("Layer", model.layers, state.get("layer"), (chosen) => state.set({ layer: chosen }));
  const head = numberSelect("Head", model.heads, state.get("head"), (chosen) => state.set({ head: chosen }));
  const curve = segmented("Colours", { sqrt: "√ scale", linear: "linear" }, state.get("curve"), (chosen) => state.set({ curve: chosen }));
  const light = segmented("Light up in the text", { row: "row", column: "column" }, state.get("light"), (chosen) => state.set({ light: chosen }));
  const size = segmented("Rows and keys of the block", SIZES, String(state.get("size")), (chosen) => state.set({ size: Number(chosen) }));
  const key = el("div", { class: "legend" });
  const gridNote = el("p", { class: "note" }), gridRoot = el("div", { class: "grid", role: "group", "aria-label": "All heads of all layers" });
  const readout = el("p", { class: "readout", id: "readout", "aria-live": "polite" });
  const mapRoot = el("div", { class: "map", tabindex: 0, role: "application", "aria-label": "Large map", "aria-describedby": "readout" });
  const blockNote = el("p", { class: "note" }), overviewRoot = el("div", { class: "overview" });
  const block = el("div", { class: "block", hidden: true }, overviewRoot,
    el("div", { class: "block-side" }, el("span", { class: "muted" }, "Block of"), size, blockNote));
  root.append(el("div", { class: "heads" },
    el("div", { class: "heads-grid" }, el("h2", {}, "All heads", el("small", {}, "layers down, heads across")), gridRoot, gridNote),
    el("div", { class: "heads-map" },
      el("div", { class: "controls" }, layer, head, el("span", { class: "control" }, "Lights up", light), curve, key),
      readout, el("div", { class: "map-side" }, mapRoot, block))));

  const grid = createGrid(gridRoot, app);
  const map = createMap(mapRoot, { onPoint: point, onPick: pick, onMove: shift, picked: () => state.get("token") });
  const overview = createOverview(overviewRoot, { onChoose: (row, column) => moveTo(row, column) });
  gridRoot.addEventListener("grown", drawOverview);
  let width = 0;
  new ResizeObserver(([{ contentRect }]) => {
    if (!contentRect.width || Math.abs(contentRect.width - width) < 2 || !map.map) return;
    width = contentRect.width;
    show(map.map);
  }).observe(mapRoot);

  const look = () => ({ theme: app.theme(), curve: state.get("curve"), ink: app.ink() });
  // as high as the window has room, but a block of many cells may need scrolling
  const room = () => ({
    width: (mapRoot.clientWidth || 640) / zoom(),
    height: Math.max(app.run.n > state.get("size") ? 520 : 400, (innerHeight - aboveMap() - 64) / zoom()),
  });
  const aboveMap = () => mapRoot.getBoundingClientRect().top + scrollY;

  function point(at) {
    const shown = map.map;
    if (!at || !shown) {
      readout.textContent = `Layer ${shown?.layer ?? state.get("layer")}, head ${shown?.head ?? state.get("head")}. Point at a cell for its value.`;
      strip.clear();
      return;
    }
    const name = (position) => `${position} “${label(shown.run, position)}”`;
    if (at.query !== null && at.key !== null) {
      readout.replaceChildren(`query ${name(at.query)} → key ${name(at.key)}: `,
        el("output", { "data-query": at.query, "data-key": at.key }, valueAt(shown, model, at.query, at.key)));
    } else readout.textContent = at.key === null ? `query ${name(at.query)}: its row` : `key ${name(at.key)}: its column`;
    const asRow = at.key === null || (at.query !== null && state.get("light") === "row");
    strip.light(lineOf(shown, at, asRow), state.get("curve"), at);
  }

  /** The values of a row or column of the block, as [position, value]. */
  function lineOf({ rows, keys, cells }, at, asRow) {
    const across = keys[1] - keys[0], [from, to] = asRow ? keys : rows;
    return Array.from({ length: to - from }, (_, i) => [from + i,
      asRow ? cells[(at.query - rows[0]) * across + i] : cells[i * across + at.key - keys[0]]]);
  }

  function pick({ query, key: column }) {
    const chosen = state.get("light") === "row" ? query ?? column : column ?? query;
    state.set({ token: chosen });
  }

  function shift(down, across) {
    const { rows, keys } = blockOf(state, app.run.n);
    moveTo(rows[0] + down, keys[0] + across);
  }

  function moveTo(row, column) {
    const most = app.run.n - Math.min(state.get("size"), app.run.n);
    const within = (value) => Math.min(most, Math.max(0, Math.round(value)));
    state.set({ row: within(row), key: within(column) });
  }

  function load(moving) {
    const signal = loading.next(app.run.signal), run = app.run;
    const [i, h] = [state.get("layer"), state.get("head")], part = blockOf(state, run.n);
    mapRoot.setAttribute("aria-busy", "true");
    return app.guard(async () => {
      try {
        const tensor = isLong(run) ? await longMap(run, i, h, part, signal) : await shortMap(run, i, h, part, signal, moving);
        show({ run, layer: i, head: h, rows: part.rows, keys: part.keys, cells: largeCells(tensor, h) });
        performance.mark("headwater:map");
      } finally {
        if (!signal.aborted) mapRoot.removeAttribute("aria-busy");
      }
    });
  }

  async function shortMap(run, i, h, part, signal, moving) {
    if (moving) await pause(STEADY_MS, signal);
    return (await service.outputs(run, [largeMap(run, i, h, part)], { signal })).map;
  }

  /** The block of a long text: the pass that makes it brings along the small maps in sight that it runs through. */
  async function longMap(run, i, h, part, signal) {
    const name = JSON.stringify([i, part]);
    if (held.has(name)) return held.get(name);
    await pause(STEADY_MS, signal);
    const small = grid.claim(i);
    try {
      const tensors = await service.outputs(run, [largeMap(run, i, h, part), ...smallMaps(run, small.layers)], { signal });
      held.set(name, tensors.map);
      if (held.size > HELD) held.delete(held.keys().next().value);
      small.take(tensors);
      return tensors.map;
    } finally {
      small.release();
    }
  }

  function show(shown) {
    map.show(shown, model, room(), look());
    point(null);
    drawOverview();
  }

  function drawOverview() {
    const { run } = app, part = blockOf(state, run.n);
    block.hidden = part.whole;
    gridNote.textContent = grid.legend();
    if (part.whole) return;
    blockNote.textContent = `The large map shows rows ${part.rows[0]} to ${part.rows[1] - 1} and keys ${part.keys[0]} to ${part.keys[1] - 1} of ${run.n}, each value exactly. Point at the small map to move it.`;
    overview.draw(grid.canvas(state.get("layer"), state.get("head")), part, run.n, look());
  }

  function drawLegend() {
    const { theme, curve: chosen, ink } = look();
    const node = frame(230, 30, ink, "colour scale");
    node.append(legend(6, 2, { theme, curve: chosen, ink, masked: model.causal }));
    key.replaceChildren(node);
  }

  return {
    update(changed) {
      const any = (...names) => names.some((name) => changed.has(name));
      grid.update(changed);
      layer.choose(state.get("layer"));
      head.choose(state.get("head"));
      curve.choose(state.get("curve"));
      light.choose(state.get("light"));
      size.choose(String(state.get("size")));
      if (any("theme", "curve", "run")) drawLegend();
      if (any("run")) {
        map.clear();
        held.clear();
      }
      if (any("run", "layer", "head", "row", "key", "size")) {
        drawOverview();
        load(!any("run"));
      } else if (any("theme", "curve") && map.map) show(map.map);
    },
    leave() {
      loading.stop();
      grid.leave();
    },
    figure,
  };

  /** The large map with its legend, and below it the small maps that are drawn. */
  function figure() {
    const shown = map.map;
    if (!shown) return null;
    const style = look(), { ink } = style;
    const { node: large, geometry } = drawMap(shown, model, { width: 900, height: 820 }, style);
    const drawn = Array.from({ length: model.layers }, (_, i) => i).filter((i) => grid.has(i));
    const side = 40, gap = 4, gridTop = 60 + geometry.height + 46;
    const total = { width: Math.max(geometry.width, 60 + model.heads * (side + gap), 640), height: gridTop + drawn.length * (side + gap) + 20 };
    const whole = frame(total.width, total.height, ink, `attention of ${model.name}`);
    const note = `${model.name}, layer ${shown.layer}, head ${shown.head}: attention, queries down, keys across`;
    whole.append(words(20, 26, note, { fill: ink.ink, size: 15, weight: 600 }),
      legend(20, 38, { ...style, masked: model.causal }));
    whole.append(svg("g", { transform: "translate(0 60)" }, ...[...large.childNodes].slice(1)));
    whole.append(words(20, gridTop - 26, `${grid.legend()} Layers down, heads across.`, { fill: ink.muted, size: 11 }));
    for (let h = 0; h < model.heads; h++) {
      whole.append(words(50 + h * (side + gap) + side / 2, gridTop - 6, String(h), { fill: ink.muted, size: 11, anchor: "middle" }));
    }
    drawn.forEach((i, line) => {
      const y = gridTop + line * (side + gap);
      whole.append(words(40, y + side / 2 + 4, String(i), { fill: ink.muted, anchor: "end" }));
      for (let h = 0; h < model.heads; h++) whole.append(picture(grid.canvas(i, h), 50 + h * (side + gap), y, side, side));
    });
    return whole;
  }
}
