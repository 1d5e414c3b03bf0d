/** The norms of the tokens of a block from layer to layer as lines, on a scale of powers of ten. */

import { svg } from "../dom.js";
import { words } from "../figure.js";
import { brief } from "./stream-grid.js";

const LEFT = 46, RIGHT = 14, TOP = 14, BOTTOM = 34;

/** A group `width` x `height`: a line a token of `lines[state][token]`; that at index `chosen` stands out. */
export function drawChart(lines, chosen, width, height, ink) {
  const group = svg("g", {}), all = lines.flatMap((line) => [...line]).filter((value) => value > 0);
  const ends = [Math.log10(Math.min(...all)), Math.log10(Math.max(...all))], margin = 0.05 * (ends[1] - ends[0]) + 0.02;
  const low = ends[0] - margin, high = ends[1] + margin;
  const x = (i) => LEFT + (i * (width - LEFT - RIGHT)) / Math.max(1, lines.length - 1);
  const y = (value) => height - BOTTOM - ((Math.log10(Math.max(value, 10 ** low)) - low) * (height - TOP - BOTTOM)) / (high - low);
  for (const mark of marks(low, high)) {
    const at = y(mark);
    group.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: at, y2: at, stroke: ink.line }),
      words(LEFT - 6, at + 4, brief(mark), { fill: ink.muted, size: 10.5, anchor: "end" }));
  }
  const every = Math.max(1, Math.ceil(lines.length / 8));
  for (let i = 0; i < lines.length; i += every) {
    group.append(words(x(i), height - BOTTOM + 15, i === 0 ? "X" : String(i - 1), { fill: ink.muted, size: 10.5, anchor: "middle" }));
  }
  group.append(words((LEFT + width) / 2, height - 4, "after layer", { fill: ink.muted, size: 10.5, anchor: "middle" }));
  const path = (token) => lines.map((line, i) => `${x(i).toFixed(1)},${y(line[token]).toFixed(1)}`).join(" ");
  for (let token = 0; token < lines[0].length; token++) {
    group.append(svg("polyline", { points: path(token), fill: "none", stroke: ink.muted, "stroke-width": 1, "stroke-opacity": 0.45 }));
  }
  if (chosen !== null) {
    group.append(svg("polyline", { points: path(chosen), fill: "none", stroke: ink.accent, "stroke-width": 2.5 }));
  }
  return group;
}

/** Round numbers between two powers of ten: where these are few, 2 and 5 times them too. */
function marks(low, high) {
  const steps = high - low > 2 ? [1] : [1, 2, 5], found = [];
  for (let power = Math.floor(low); power <= high; power++) found.push(...steps.map((step) => step * 10 ** power));
  return found.filter((mark) => Math.log10(mark) >= low && Math.log10(mark) <= high);
}
