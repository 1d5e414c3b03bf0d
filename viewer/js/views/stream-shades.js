/** How dark the cells of the stream's tables are, and the legends that say so. */

import { svg } from "../dom.js";
import { palette } from "../colour.js";
import { words } from "../figure.js";
import { brief } from "./stream-grid.js";

/** Of a cell, by the rank of a token there: index 0 is "not among them". */
export const RANK_SHADES = [0, 0.85, 0.62, 0.44, 0.3, 0.18];

/** The rank of a token among `top`, from 1; 0 where it is not there. */
export function rankOf(id, top) {
  return 1 + top.findIndex((one) => one.id === id);
}

/** Of a cell, by how much likelier its first token is than its second: 0 for as likely, 1 for beyond measure. */
export function marginShade([first, second]) {
  return second ? 1 - Math.exp(second.logit - first.logit) : 1;
}

/** A function from norms to 0..1 that runs evenly in their logarithm, from the least of these to the largest. */
export function normShade(lines) {
  const [low, high] = bounds(lines);
  return (value) => (high > low ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : 0.5);
}

function bounds(lines) {
  const all = lines.flatMap((line) => [...line]).filter((value) => value > 0);
  return all.length ? [Math.min(...all), Math.max(...all)] : [1, 1];
}

/** The legend of "norms" (with their lines), "final" or "margin", as an SVG group 400 wide and 32 high; `narrow` 280 and 48. */
export function streamLegend(x, y, kind, lines, { theme, ink, narrow = false }) {
  const group = svg("g", { transform: `translate(${x} ${y})` }), scale = palette(theme);
  const note = (at, text, anchor = "middle") => group.append(words(at, 26, text, { fill: ink.muted, size: 10, anchor }));
  const title = (at, text) => group.append(words(narrow ? 0 : at, narrow ? 42 : 10, text, { fill: ink.muted, size: 11 }));
  if (kind === "final") {
    ["1", "2", "3", "4", "5", "none"].forEach((text, i) => {
      group.append(svg("rect", { x: 34 * i, y: 0, width: 30, height: 12, fill: scale.css(RANK_SHADES[(i + 1) % 6]), stroke: ink.line }));
      note(34 * i + 15, text);
    });
    title(214, "rank of the last layer's first");
    return group;
  }
  const width = 160;
  for (let i = 0; i < 80; i++) group.append(svg("rect", { x: 2 * i, y: 0, width: 2.2, height: 12, fill: scale.css(i / 79) }));
  if (kind === "norms") {
    const [low, high] = bounds(lines);
    [0, 0.5, 1].forEach((t) => note(t * width, brief(low * (high / low) ** t)));
    title(width + 14, "norm, logarithmic");
  } else {
    for (const times of [1, 2, 10]) note((1 - 1 / times) * width, `×${times}`);
    title(width + 14, "the first is so much likelier than the second");
  }
  return group;
}
