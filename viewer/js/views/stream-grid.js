/** A table of the residual stream: layers down, tokens across, a colour and a word or two in each cell. */

import { svg } from "../dom.js";
import { palette } from "../colour.js";
import { frame, words } from "../figure.js";
import { shortLabel } from "../tokens.js";

const LEFT = 78, RIGHT = 40, BOTTOM = 10, SMALL = 60, LETTER = 6.6;

/** The name of a line: 0 is what enters the first layer, i+1 what leaves layer i. */
export function lineName(line) {
  return line === 0 ? "X" : `layer ${line - 1}`;
}

/**
 * The drawing `{node, geometry}` of `{run, columns: [from, to], lines, shade(i, j) in 0..1, text(i, j, most) | null, cell,
 * chosen: {line, token}, label}`; a geometry as cursor.js takes it. A text of more than `most` characters is cut.
 */
export function drawGrid({ run, columns: [from, to], lines, shade, text, cell, chosen, label }, room, { theme, ink }) {
  const count = to - from, cellHeight = 22;
  const cellWidth = Math.max(cell[0], Math.min(cell[1], Math.floor((room.width - LEFT - RIGHT) / count)));
  const most = cellWidth < SMALL ? 9 : Math.floor((cellWidth - 6) / LETTER);
  const names = Array.from({ length: count }, (_, j) => shortLabel(run, from + j, most));
  const top = cellWidth < SMALL ? 34 + 5 * Math.max(...names.map((name) => [...name].length)) : 40;
  const size = { width: LEFT + cellWidth * count + RIGHT, height: top + cellHeight * lines + BOTTOM };
  const node = frame(size.width, size.height, ink, label), scale = palette(theme);
  node.append(words(LEFT - 8, top - 8, "layer ↓", { fill: ink.muted, size: 10.5, anchor: "end" }));
  for (let j = 0; j < count; j++) {
    const x = LEFT + (j + 0.5) * cellWidth, bold = from + j === chosen.token ? { fill: ink.accent, weight: 700 } : { fill: ink.ink };
    if (cellWidth < SMALL) node.append(words(x + 3, top - 7, names[j], { ...bold, rotate: -55 }));
    else {
      node.append(words(x, top - 8, names[j], { ...bold, anchor: "middle" }),
        words(x, top - 23, String(from + j), { fill: ink.muted, size: 10, anchor: "middle" }));
    }
  }
  const letters = Math.max(1, Math.floor((cellWidth - 6) / LETTER)); // that a cell has room for
  for (let i = 0; i < lines; i++) {
    const y = top + i * cellHeight;
    node.append(words(LEFT - 8, y + 15, lineName(i), { fill: ink.muted, size: 11, anchor: "end" }));
    for (let j = 0; j < count; j++) {
      const t = shade(i, j), x = LEFT + j * cellWidth, word = text(i, j, letters);
      node.append(svg("rect", { x, y, width: cellWidth - 1, height: cellHeight - 1, fill: scale.css(t), "data-line": i, "data-token": from + j }));
      if (word !== null) {
        const characters = [...word], cut = characters.length > letters ? `${characters.slice(0, letters - 1).join("")}…` : word;
        node.append(words(x + cellWidth / 2, y + 15, cut, {
          fill: t > 0.5 === (theme === "light") ? "#ffffff" : "#111111", size: 11.5, anchor: "middle",
        }));
        node.lastChild.setAttribute("pointer-events", "none");
      }
    }
  }
  if (chosen.token >= from && chosen.token < to) {
    node.append(svg("rect", {
      x: LEFT + (chosen.token - from) * cellWidth - 1, y: top + chosen.line * cellHeight - 1, width: cellWidth + 1, height: cellHeight + 1,
      fill: "none", stroke: ink.accent, "stroke-width": 2.5, "pointer-events": "none",
    }));
  }
  const geometry = {
    left: LEFT, top, cellWidth, cellHeight, rows: lines, columns: count, bins: count,
    strongest: (_, bin) => bin, binOf: (column) => column, ...size,
  };
  return { node, geometry };
}

/** A number in few letters: three digits, thousands as k; fewer digits where it is to have at most `most` letters, or null. */
export function brief(value, most = Infinity) {
  for (const digits of [3, 2, 1]) {
    const rounded = Number(value.toPrecision(digits));
    const text = rounded >= 1000 ? `${Number((rounded / 1000).toPrecision(digits))}k` : String(rounded);
    if (text.length <= most) return text;
  }
  return null;
}
