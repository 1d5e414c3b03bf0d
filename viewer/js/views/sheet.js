/** Numbers of some rows as a heat map: tokens down, columns across. Where columns are many a pixel stands for several. */

import { svg } from "../dom.js";
import { curved, palette } from "../colour.js";
import { frame, legend, picture, words } from "../figure.js";
import { placedLabel } from "../tokens.js";
import { scaleOf, signedColour, signedCss, signedCurve } from "./signed.js";

const RIGHT = 30, BOTTOM = 30, LETTER = 7.4;

/**
 * What is drawn: `{run, rows: [from, to], columns, values, unit, tokensAcross, label}`. `values` is [rows, columns],
 * -Infinity where masked; `unit` says that they are within 0..1. Gives `{node, geometry}`; of a geometry `strongest(i, bin)`
 * is the column that a pixel column of row i shows, and `binOf(column)` the other way.
 */
export function drawSheet(sheet, room, look) {
  const { run, rows, columns, values, unit } = sheet, { ink } = look, count = rows[1] - rows[0];
  const labels = Array.from({ length: count }, (_, i) => placedLabel(run, rows[0] + i));
  const left = Math.max(90, 14 + LETTER * Math.max(...labels.map((text) => [...text].length)));
  const space = Math.max(120, room.width - left - RIGHT);
  const bins = Math.min(columns, Math.floor(space));
  const cellWidth = Math.min(sheet.tokensAcross ? 34 : 14, bins < columns ? 1 : space / bins);
  const named = sheet.tokensAcross && cellWidth >= 12;
  const top = named ? 30 + 0.82 * LETTER * longestName(run, columns) : 26;
  const cellHeight = Math.min(26, Math.max(12, Math.floor((room.height - top - BOTTOM) / count)));
  const width = cellWidth * bins, height = cellHeight * count;
  const firstOf = (bin) => Math.floor((bin * columns) / bins);

  function strongest(i, bin) {
    let best = firstOf(bin);
    for (let j = best + 1; j < firstOf(bin + 1); j++) {
      if (sizeAt(i, j) > sizeAt(i, best)) best = j;
    }
    return best;
  }
  const sizeAt = (i, j) => {
    const value = values[i * columns + j];
    return Number.isFinite(value) ? Math.abs(value) : -1;
  };

  const scale = unit ? 1 : scaleOf(values);
  const canvas = document.createElement("canvas");
  canvas.width = bins;
  canvas.height = count;
  const context = canvas.getContext("2d"), image = context.createImageData(bins, count), { rgb } = palette(look.theme);
  for (let i = 0, at = 0; i < count; i++) {
    for (let bin = 0; bin < bins; bin++, at += 4) {
      const value = values[i * columns + strongest(i, bin)];
      if (!sheet.sees(rows[0] + i, bins === columns ? bin : strongest(i, bin)) || !Number.isFinite(value)) continue;
      const t = 3 * Math.round(255 * curved(value, look.curve));
      image.data.set(unit ? rgb.subarray(t, t + 3) : signedColour(look.theme, signedCurve(value, scale, look.curve)), at);
      image.data[at + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);

  const size = { width: left + width + RIGHT, height: top + height + BOTTOM };
  const node = frame(size.width, size.height, ink, sheet.label);
  node.append(picture(canvas, left, top, width, height),
    svg("rect", { x: left, y: top, width, height, fill: "none", stroke: ink.line }),
    words(left - 8, top - 8, sheet.tokensAcross ? "query ↓  key →" : "token ↓", { fill: ink.muted, size: 10.5, anchor: "end" }));
  labels.forEach((text, i) => node.append(words(left - 7, top + (i + 0.5) * cellHeight + 4, text, { fill: ink.ink, anchor: "end" })));
  for (const column of ticks(columns, named ? 1 : Math.max(1, 44 / (width / columns)))) {
    const x = left + ((column + 0.5) * width) / columns;
    node.append(named ? words(x + 3, top - 7, placedLabel(run, column), { fill: ink.ink, rotate: -55 })
      : words(x, top - 8, String(column), { fill: ink.muted, size: 10.5, anchor: "middle" }));
  }
  const geometry = {
    left, top, cellWidth, cellHeight, rows: count, columns, bins, strongest, scale, ...size,
    binOf: (column) => Math.min(bins - 1, Math.floor(((column + 0.5) * bins) / columns)),
  };
  return { node, geometry };
}

/** The colour scale of a sheet, as an SVG group 260 wide and 34 high. */
export function sheetLegend(x, y, { unit, masked }, scale, look) {
  if (unit) return legend(x, y, { ...look, masked });
  const group = svg("g", { transform: `translate(${x} ${y})` }), { ink, theme, curve } = look, width = 140;
  for (let i = 0; i < 70; i++) {
    const value = ((i - 34.5) / 34.5) * scale;
    group.append(svg("rect", { x: i * 2, y: 0, width: 2.2, height: 12, fill: signedCss(theme, signedCurve(value, scale, curve)) }));
  }
  const mark = Number(scale.toPrecision(3));
  for (const [at, text] of [[0, `≤ −${mark}`], [width / 2, "0"], [width, `≥ ${mark}`]]) {
    group.append(words(at, 26, text, { fill: ink.muted, size: 10, anchor: "middle" }));
  }
  if (masked) {
    group.append(svg("rect", { x: width + 34, y: 1, width: 10, height: 10, fill: ink.paper, stroke: ink.line }),
      words(width + 49, 10, "masked", { fill: ink.muted, size: 11 }));
  }
  return group;
}

function longestName(run, columns) {
  return Math.max(...Array.from({ length: columns }, (_, i) => [...placedLabel(run, i)].length));
}

/** Columns to put a number at, at least `apart` from each other: round steps. */
function ticks(columns, apart) {
  const step = [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500, 512, 1000, 1024, 2000, 4096].find((one) => one >= apart) ?? columns;
  return Array.from({ length: Math.ceil(columns / step) }, (_, i) => i * step);
}
