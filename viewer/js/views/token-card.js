/** One head's card in the view of a token: a line of all values, and bars of the largest, on both sides. */

import { svg } from "../dom.js";
import { paint, picture, words } from "../figure.js";
import { isRepeated, shortLabel } from "../tokens.js";
import { exact } from "./maps.js";

export const CARD = { width: 452, height: 158 };
const SIDE = 208, LABEL = 98, BAR = 62, LINE = 18, MOST = 5;

/** The parts of a card: `shown` is `{run, token, from, to}` with values [heads, n], `style` `{theme, curve, ink}`. */
export function card(shown, head, chosen, style) {
  const { ink } = style;
  return [
    svg("rect", {
      x: 4, y: 4, width: CARD.width - 12, height: CARD.height - 12, rx: 6, fill: ink.paper,
      stroke: chosen ? ink.accent : ink.line, "stroke-width": chosen ? 2.5 : 1, "data-head": head,
    }),
    words(14, 22, `Head ${head}`, { fill: chosen ? ink.accent : ink.ink, size: 13, weight: 650 }),
    side(shown, head, "from", 14, "looks at", style),
    side(shown, head, "to", 14 + SIDE + 8, "is looked at by", style),
  ];
}

function side({ run, token, ...both }, head, name, x, title, style) {
  const { ink } = style, values = both[name].subarray(head * run.n, (head + 1) * run.n);
  const line = stretches(values, SIDE);
  const canvas = paint(document.createElement("canvas"), 1, line.length, (_, j) => line[j], style);
  const group = svg("g", { transform: `translate(${x} 0)`, "data-head": head, "data-side": name },
    svg("rect", { x: -4, y: 8, width: SIDE + 8, height: CARD.height - 20, fill: ink.paper, "fill-opacity": 0 }),
    words(SIDE, 22, title, { fill: ink.muted, size: 11, anchor: "end" }),
    picture(canvas, 0, 29, SIDE, 11),
    svg("rect", { x: 0, y: 29, width: SIDE, height: 11, fill: "none", stroke: ink.line }),
    svg("path", { d: `M${((token + 0.5) * SIDE) / run.n} 40 l-4 6 h8 z`, fill: ink.accent }));
  largest(values).forEach((at, line) => group.append(bar(run, at, values[at], line, style)));
  return group;
}

function bar(run, at, value, line, { ink }) {
  const y = 50 + line * LINE;
  return svg("g", {
    "data-pick": at, "data-value": exact(value), tabindex: 0, role: "button", cursor: "pointer",
    "aria-label": `token ${at} ${shortLabel(run, at)}: ${exact(value)}`,
  },
  svg("title", {}, `token ${at}: ${exact(value)}`),
  svg("rect", { x: -4, y, width: SIDE + 8, height: LINE, fill: ink.paper, "fill-opacity": 0 }),
  words(LABEL - 6, y + 13, barLabel(run, at), { fill: ink.ink, size: 12, anchor: "end" }),
  svg("rect", { x: LABEL, y: y + 4, width: BAR, height: 10, fill: ink.line, "fill-opacity": 0.35 }),
  svg("rect", { x: LABEL, y: y + 4, width: Math.max(1, BAR * Math.min(1, value)), height: 10, fill: ink.action }),
  words(SIDE, y + 13, value >= 0.0001 ? value.toFixed(4) : value.toExponential(1), { fill: ink.muted, size: 11, anchor: "end" }));
}

/** With its position where there are many tokens, or several of this name. */
function barLabel(run, at) {
  return run.n > 64 || isRepeated(run, at) ? `${at} ${shortLabel(run, at, 9)}` : shortLabel(run, at, 10);
}

/** Values as they are where there are at most `most`, else the largest of each of `most` stretches. */
function stretches(values, most) {
  if (values.length <= most) return values;
  const found = new Float32Array(most);
  values.forEach((value, at) => {
    const place = Math.floor((at * most) / values.length);
    if (value > found[place]) found[place] = value;
  });
  return found;
}

/** The positions of the largest values above 0, largest first. */
function largest(values) {
  const found = [];
  for (let at = 0; at < values.length; at++) {
    if (!(values[at] > 0) || (found.length === MOST && values[at] <= values[found[MOST - 1]])) continue;
    const place = found.findIndex((other) => values[at] > values[other]);
    found.splice(place < 0 ? found.length : place, 0, at);
    if (found.length > MOST) found.pop();
  }
  return found;
}
