/** All heads of all layers as small maps; those are fetched whose layer can be seen. */

import { el } from "../dom.js";
import { paint } from "../figure.js";
import { isLong, sampledRows, smallCells, smallMaps } from "./maps.js";

// while somebody scrolls, nothing is asked for; with a long text the large map asks first, for what is in sight too
const PATIENCE_MS = { short: 60, long: 400 };

/** The grid in `root`; `app` as in README.md. */
export function createGrid(root, app) {
  const { state, model } = app;
  let made = new Map(); // layer -> {side, cells}
  let run = null, pending = null, timer = null, active = true;
  const seen = new Set(), claimed = new Set();

  const rows = Array.from({ length: model.layers }, (_, layer) =>
    el("div", { class: "grid-row", "data-layer": layer }, el("span", { class: "grid-layer" }, String(layer)),
      ...Array.from({ length: model.heads }, (_, head) => el("button", {
        type: "button", class: "thumb", tabindex: -1, "data-layer": layer, "data-head": head,
        "aria-label": `layer ${layer}, head ${head}`, title: `layer ${layer}, head ${head}`,
      }, el("canvas", { width: 1, height: 1, "aria-hidden": "true" })))));
  const heading = el("div", { class: "grid-row grid-heading", "aria-hidden": "true" }, el("span", { class: "grid-layer" }),
    ...Array.from({ length: model.heads }, (_, head) => el("span", {}, String(head))));
  root.replaceChildren(heading, ...rows);

  const thumb = (layer, head) => rows[layer].children[head + 1];

  root.addEventListener("click", (event) => {
    const button = event.target.closest(".thumb");
    if (button) state.set({ layer: Number(button.dataset.layer), head: Number(button.dataset.head) });
  });
  root.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const clamp = (value, count) => Math.min(count - 1, Math.max(0, value));
    const layer = clamp(state.get("layer") + step[0], model.layers), head = clamp(state.get("head") + step[1], model.heads);
    state.set({ layer, head });
    thumb(layer, head).focus();
  });

  const watching = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const layer = Number(target.dataset.layer);
      if (isIntersecting) seen.add(layer);
      else seen.delete(layer);
    }
    schedule();
  }, { root });
  for (const row of rows) watching.observe(row);

  function wanted() {
    return [...new Set([...seen, state.get("layer")])]
      .filter((layer) => !made.has(layer) && !claimed.has(layer) && !pending?.layers.includes(layer)).sort((a, b) => a - b);
  }

  function schedule() {
    // what is under way for layers that nobody looks at any more is given up
    if (pending && !pending.layers.some((layer) => seen.has(layer) || layer === state.get("layer"))) {
      pending.controller.abort();
    }
    clearTimeout(timer);
    timer = setTimeout(load, run && isLong(run) ? PATIENCE_MS.long : PATIENCE_MS.short);
  }

  function load() {
    const layers = wanted();
    if (!active || !run || pending || !layers.length) return;
    const controller = new AbortController(), mine = run;
    pending = { layers, controller };
    app.guard(async () => {
      try {
        const signal = AbortSignal.any([controller.signal, mine.signal]);
        const tensors = await app.service.outputs(mine, smallMaps(mine, layers), { signal });
        take(mine, layers, tensors);
      } finally {
        if (pending?.controller === controller) pending = null;
      }
      schedule();
    });
  }

  function take(of, layers, tensors) {
    if (of !== run || !layers.length) return;
    for (const layer of layers) {
      made.set(layer, smallCells(tensors, model, of, layer));
      draw(layer);
    }
    performance.mark("headwater:grid");
    root.dispatchEvent(new CustomEvent("grown"));
  }

  /** Scroll the grid, and it alone, until a row can be seen. */
  function reveal(row) {
    const top = row.offsetTop - heading.offsetHeight, bottom = row.offsetTop + row.offsetHeight;
    if (top < root.scrollTop) root.scrollTop = top;
    else if (bottom > root.scrollTop + root.clientHeight) root.scrollTop = bottom - root.clientHeight;
  }

  function draw(layer) {
    const { side, cells } = made.get(layer);
    for (let head = 0; head < model.heads; head++) {
      const canvas = thumb(layer, head).firstChild, at = head * side * side;
      paint(canvas, side, side, (i, j) => {
        const value = cells[at + i * side + j];
        return Number.isNaN(value) ? null : value;
      }, { theme: app.theme(), curve: state.get("curve") });
    }
    rows[layer].classList.add("drawn");
  }

  return {
    /** Follow the run and the state. */
    update(changed) {
      active = true;
      if (changed.has("run")) {
        run = app.run;
        pending?.controller.abort();
        pending = null;
        made = new Map();
        for (const row of rows) row.classList.remove("drawn");
      }
      if (changed.has("theme") || changed.has("curve")) for (const layer of made.keys()) draw(layer);
      root.querySelector(".thumb[aria-current]")?.removeAttribute("aria-current");
      const chosen = thumb(state.get("layer"), state.get("head"));
      chosen.setAttribute("aria-current", "true");
      for (const other of root.querySelectorAll('.thumb[tabindex="0"]')) other.setAttribute("tabindex", "-1");
      chosen.setAttribute("tabindex", "0");
      if (changed.has("layer") || changed.has("run")) reveal(rows[state.get("layer")]);
      schedule();
    },
    leave() {
      active = false;
      pending?.controller.abort();
      pending = null;
    },
    /**
     * The layers in sight up to `deepest` that are missing, for a call that runs so deep anyway: `take(tensors)` its
     * answer to `smallMaps`, and `release()` them in the end, so that what did not come is asked for again.
     */
    claim(deepest) {
      const of = run, layers = wanted().filter((layer) => layer <= deepest);
      for (const layer of layers) claimed.add(layer);
      return {
        layers,
        take: (tensors) => take(of, layers, tensors),
        release() {
          for (const layer of layers) claimed.delete(layer);
          schedule();
        },
      };
    },
    /** What the small maps show, in words. */
    legend() {
      const rowsShown = sampledRows(run.n).length;
      return rowsShown === run.n ? `Each small map has all ${run.n} × ${run.n} values.`
        : `Each small map shows ${rowsShown} of ${run.n} query rows, and of each row its 8 strongest keys, in ${rowsShown} columns.`;
    },
    /** The canvas of a head, or null where it is not drawn yet. */
    canvas: (layer, head) => (made.has(layer) ? thumb(layer, head).firstChild : null),
    /** Whether a layer is drawn. */
    has: (layer) => made.has(layer),
  };
}
