/** Beside the table of the stream: the lines of the norms, or what is said at the cell that is picked, with probabilities. */

import { el } from "../dom.js";
import { frame } from "../figure.js";
import { latest } from "../service.js";
import { zoom } from "../theme.js";
import { label } from "../tokens.js";
import { drawChart } from "./stream-chart.js";
import { lineName } from "./stream-grid.js";
import { exactPrediction, vocabularyOf } from "./stream-states.js";

const WIDTH = 330, HEIGHT = 300;

/** In `root`; `app` as in README.md. */
export function createDetail(root, app) {
  const { service, model } = app, loading = latest();
  const heading = el("h2", {}), body = el("div", { "aria-live": "polite" });
  root.append(heading, body);

  function chart({ mode, lines, columns }, width, height) {
    if (mode !== "norms") return null;
    const token = app.state.get("token"), inside = token >= columns[0] && token < columns[1];
    return drawChart(lines, inside ? token - columns[0] : null, width, height, app.ink());
  }

  function showChart(shown, token) {
    const node = frame(WIDTH, HEIGHT, app.ink(), "norms from layer to layer");
    node.append(chart(shown, WIDTH, HEIGHT));
    node.style.width = `${WIDTH * zoom()}px`;
    node.style.maxWidth = "100%";
    heading.replaceChildren("Layer by layer", el("small", {}, `in colour: ${token} “${label(shown.run, token)}”`));
    body.replaceChildren(node);
  }

  async function showCell({ run, states, columns, d }, token, line) {
    const at = (token - columns[0]) * d, row = states[line].slice(at, at + d), signal = loading.next(run.signal);
    const name = `prediction ${run.ids} ${token} ${line}`;
    const { indices, logits, probabilities } = await exactPrediction(service, model, row, name, signal);
    const names = await vocabularyOf(service, model, indices, signal);
    heading.replaceChildren(`After ${lineName(line)}`, el("small", {}, `at ${token} “${label(run, token)}”`));
    const cells = indices.map((id, k) => el("tr", { "data-id": id },
      el("td", { dir: "ltr" }, label(names.run, names.at.get(id))), el("td", {}, String(id)), el("td", {}, logits[k].toFixed(3)),
      el("td", { "data-probability": probabilities[k] }, percent(probabilities[k]))));
    body.replaceChildren(el("table", { class: "lens" },
      el("thead", {}, el("tr", {}, ...["token", "id", "logit", "probability"].map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, ...cells)),
    el("p", { class: "note" }, `Probabilities over all ${model.vocab_size} tokens.`));
  }

  return {
    /** Follow what the table shows, and the token and line that are picked. */
    show(shown, token, line) {
      loading.stop();
      if (shown.mode === "norms") showChart(shown, token);
      else if (token >= shown.columns[0] && token < shown.columns[1]) app.guard(() => showCell(shown, token, line));
    },
    clear() {
      heading.replaceChildren();
      body.replaceChildren();
    },
    leave: () => loading.stop(),
    /** The lines of the norms as a group, or null in another mode. */
    chart,
  };
}

function percent(probability) {
  return probability >= 0.0001 ? `${(100 * probability).toFixed(2)} %` : `${(100 * probability).toExponential(1)} %`;
}
