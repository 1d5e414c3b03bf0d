/** The view of a token: of each head of a layer, where it looks from the token, and who looks at the token. */

import { el, numberSelect, segmented, svg } from "../dom.js";
import { frame, legend, words } from "../figure.js";
import { latest } from "../service.js";
import { zoom } from "../theme.js";
import { label } from "../tokens.js";
import { mapsOf } from "./maps.js";
import { card, CARD } from "./token-card.js";

export default {
  id: "token",
  title: "Token",
  help: "Tokens: left and right. Page up and Page down: another layer. A bar's token is picked with a click or Enter.",
  create,
};

function create(root, app) {
  const { state, model, service, strip } = app;
  const loading = latest();
  let shown = null; // {run, layer, token, from, to}: the values [heads, n] of its row and of its column

  const layer = numberSelect("Layer", model.layers, state.get("layer"), (chosen) => state.set({ layer: chosen }));
  const curve = segmented("Colours", { sqrt: "√ scale", linear: "linear" }, state.get("curve"), (chosen) => state.set({ curve: chosen }));
  const key = el("div", { class: "legend" }), heading = el("p", { class: "readout", "aria-live": "polite" });
  const cards = el("div", { class: "cards" });
  root.append(el("div", { class: "controls" }, layer, curve, key), heading, cards);

  root.tabIndex = 0;
  root.addEventListener("keydown", (event) => {
    const step = { PageUp: -1, PageDown: 1 }[event.key];
    const bar = event.target.closest("[data-pick]");
    if (event.key === "Enter" && bar) state.set({ token: Number(bar.dataset.pick) });
    if (!step) return;
    event.preventDefault();
    state.set({ layer: Math.min(model.layers - 1, Math.max(0, state.get("layer") + step)) });
  });
  cards.addEventListener("click", (event) => {
    const bar = event.target.closest("[data-pick]"), head = event.target.closest("[data-head]");
    if (bar) state.set({ token: Number(bar.dataset.pick) });
    else if (head) state.set({ head: Number(head.dataset.head) });
  });
  cards.addEventListener("pointerover", (event) => {
    const side = event.target.closest("[data-side]");
    if (side && shown) lightUp(Number(side.dataset.head), side.dataset.side);
  });
  cards.addEventListener("pointerleave", () => shown && lightUp(state.get("head"), "from"));
  let width = 0;
  new ResizeObserver(([{ contentRect }]) => {
    if (!contentRect.width || Math.abs(contentRect.width - width) < 2 || !shown) return;
    width = contentRect.width;
    draw();
  }).observe(cards);

  const look = () => ({ theme: app.theme(), curve: state.get("curve"), ink: app.ink() });

  function lightUp(head, side) {
    const { run, token } = shown, values = shown[side].subarray(head * run.n, (head + 1) * run.n);
    strip.light(values.entries(), state.get("curve"), side === "from" ? { query: token } : { key: token });
  }

  function load() {
    const { run } = app, signal = loading.next(run.signal), i = state.get("layer"), token = state.get("token");
    cards.setAttribute("aria-busy", "true");
    return app.guard(async () => {
      const point = mapsOf(i);
      try {
        const { from, to } = await service.outputs(run,
          [{ name: point, as: "from", rows: [token] }, { name: point, as: "to", keys: [token] }], { signal });
        shown = { run, layer: i, token, from: from.data, to: to.data };
        draw();
        performance.mark("headwater:token");
      } finally {
        if (!signal.aborted) cards.removeAttribute("aria-busy");
      }
    });
  }

  function draw() {
    heading.textContent = `Layer ${shown.layer}, token ${shown.token} “${label(shown.run, shown.token)}”: where each head looks from it, and who looks at it`;
    if (cards.contains(document.activeElement)) root.focus({ preventScroll: true }); // what had it is drawn anew
    cards.replaceChildren(drawing((cards.clientWidth || 900) / zoom()));
    lightUp(state.get("head"), "from");
  }

  /** All cards in as many columns as there is room for. */
  function drawing(room) {
    const style = look(), columns = Math.max(1, Math.min(model.heads, Math.floor(room / CARD.width)));
    const lines = Math.ceil(model.heads / columns);
    const node = frame(columns * CARD.width, lines * CARD.height, style.ink, "attention from and to the token, by head");
    for (let head = 0; head < model.heads; head++) {
      const place = `translate(${(head % columns) * CARD.width} ${Math.floor(head / columns) * CARD.height})`;
      node.append(svg("g", { transform: place }, ...card(shown, head, head === state.get("head"), style)));
    }
    return node;
  }

  return {
    update(changed) {
      const any = (...names) => names.some((name) => changed.has(name));
      layer.choose(state.get("layer"));
      curve.choose(state.get("curve"));
      if (any("theme", "curve", "run")) {
        const { theme, curve: chosen, ink } = look(), node = frame(230, 30, ink, "colour scale");
        node.append(legend(6, 2, { theme, curve: chosen, ink }));
        key.replaceChildren(node);
      }
      if (any("run", "layer", "token", "tab") || !shown) load();
      else if (any("theme", "curve", "head")) draw();
    },
    leave: () => loading.stop(),
    figure() {
      if (!shown) return null;
      const style = look(), inner = drawing(2.1 * CARD.width);
      const [wide, high] = ["width", "height"].map((name) => Number(inner.getAttribute(name)));
      const node = frame(wide + 40, high + 90, style.ink, "attention from and to a token");
      node.append(words(20, 28, `${model.name}, layer ${shown.layer}, token ${shown.token} “${label(shown.run, shown.token)}”`,
        { fill: style.ink.ink, size: 15, weight: 600 }), legend(20, 42, style));
      node.append(svg("g", { transform: "translate(20 80)" }, ...[...inner.childNodes].slice(1)));
      return node;
    },
  };
}
