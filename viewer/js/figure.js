/** What figures are made of: a frame with paper and a caption, cells of a map, a legend. Attributes alone style them. */

import { svg } from "./dom.js";
import { curved, palette } from "./colour.js";

export const FONT = "ui-sans-serif, system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";

/** An <svg> of this size in pixels with the theme's paper behind it. `ink` is `app.ink()`. */
export function frame(width, height, ink, label) {
  return svg("svg", {
    xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": label, "font-family": FONT, "font-size": 12, fill: ink.ink,
  }, svg("rect", { width, height, fill: ink.paper }));
}

/** A line of text; `anchor` start, middle or end. What it says is text, whatever is in it. */
export function words(x, y, text, { fill, size = 12, anchor = "start", weight = 400, rotate = null } = {}) {
  return svg("text", {
    x, y, fill, "font-size": size, "text-anchor": anchor, "font-weight": weight,
    transform: rotate === null ? null : `rotate(${rotate} ${x} ${y})`,
  }, text);
}

/**
 * Draw a map into a canvas, a pixel a cell. `value(i, j)` gives 0..1, or null where a cell is masked: it stays
 * transparent, which is not the colour of 0.
 */
export function paint(canvas, rows, columns, value, { theme, curve }) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  const { rgb } = palette(theme);
  for (let i = 0, at = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++, at += 4) {
      const v = value(i, j);
      if (v === null) continue;
      const colour = 3 * Math.round(255 * curved(v, curve));
      image.data[at] = rgb[colour];
      image.data[at + 1] = rgb[colour + 1];
      image.data[at + 2] = rgb[colour + 2];
      image.data[at + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** A painted canvas as an <image> of an SVG, with its cells kept sharp. */
export function picture(canvas, x, y, width, height) {
  // enlarged by a whole number, for programs that would blur it
  const times = Math.max(1, Math.min(16, Math.floor(1024 / Math.max(canvas.width, canvas.height))));
  const large = document.createElement("canvas");
  large.width = times * canvas.width;
  large.height = times * canvas.height;
  const context = large.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, 0, 0, large.width, large.height);
  return svg("image", {
    x, y, width, height, href: large.toDataURL(), preserveAspectRatio: "none", "image-rendering": "pixelated",
  });
}

/** The colour scale with its numbers, and what a masked cell looks like: an SVG group 220 wide and 34 high. */
export function legend(x, y, { theme, curve, ink, masked = false, title = "attention" }) {
  const scale = palette(theme), group = svg("g", { transform: `translate(${x} ${y})` });
  const width = 140;
  for (let i = 0; i < 70; i++) {
    group.append(svg("rect", { x: i * 2, y: 0, width: 2.2, height: 12, fill: scale.css(i / 69) }));
  }
  for (const value of curve === "sqrt" ? [0, 0.05, 0.25, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]) {
    const at = width * curved(value, curve);
    group.append(svg("line", { x1: at, x2: at, y1: 12, y2: 15, stroke: ink.muted }));
    group.append(words(at, 26, String(value), { fill: ink.muted, size: 10, anchor: "middle" }));
  }
  group.append(words(width + 12, 10, title, { fill: ink.muted, size: 11 }));
  if (masked) {
    group.append(svg("rect", { x: width + 12, y: 17, width: 10, height: 10, fill: ink.paper, stroke: ink.line }));
    group.append(words(width + 27, 26, "masked", { fill: ink.muted, size: 11 }));
  }
  return group;
}
