/** One map large: queries down, keys across, both with their tokens; the cell under the pointer or cursor in words. */

import { svg } from "../dom.js";
import { frame, paint, picture, words } from "../figure.js";
import { zoom } from "../theme.js";
import { placedLabel } from "../tokens.js";
import { exact, visibility } from "./maps.js";

const RIGHT = 46, BOTTOM = 12, FONT_SIZE = 12;
const LETTER = 7.4; // pixels of a letter, about
const SLANT = -55; // degrees of the labels above the columns

/**
 * The drawing of a map: `{node, geometry}`. `map` is `{run, layer, head, rows: [a, b], keys: [a, b], cells}`, `room`
 * the pixels that there are for it, `look` is `{theme, curve, ink}`.
 */
export function drawMap(map, model, room, look) {
  const { run, rows, keys, cells } = map;
  const height = rows[1] - rows[0], width = keys[1] - keys[0];
  // as much beside the cells as the longest label needs
  const longest = (range) => Math.max(9, ...positions(range).map((at) => [...placedLabel(run, at)].length));
  const left = Math.max(96, 14 + LETTER * longest(rows)), top = 24 + 0.82 * LETTER * longest(keys);
  const fits = Math.min((room.width - left - RIGHT) / width, (room.height - top - BOTTOM) / height);
  const cell = Math.max(2, Math.min(40, fits >= 8 ? Math.floor(fits) : fits));
  const sees = visibility(model, map.layer), { ink } = look;
  const canvas = paint(document.createElement("canvas"), height, width,
    (i, j) => (sees(rows[0] + i, keys[0] + j) ? cells[i * width + j] : null), look);
  const size = { width: left + cell * width + RIGHT, height: top + cell * height + BOTTOM };
  const node = frame(size.width, size.height, ink, `attention of layer ${map.layer}, head ${map.head}`);
  const cellsShown = picture(canvas, left, top, cell * width, cell * height);
  const about = { "data-row": rows[0], "data-key": keys[0], "data-rows": height, "data-keys": width };
  for (const [name, value] of Object.entries(about)) cellsShown.setAttribute(name, value);
  node.append(
    cellsShown,
    svg("rect", { x: left, y: top, width: cell * width, height: cell * height, fill: "none", stroke: ink.line }),
    words(left - 8, top - 10, "query ↓  key →", { fill: ink.muted, size: 10.5, anchor: "end" }),
      );
  const geometry = { cell, left, top, rows, keys, ...size };
  for (const [axis, range] of [["row", rows], ["column", keys]]) {
    const every = Math.max(1, Math.ceil((FONT_SIZE + 1) / cell)), style = { fill: ink.ink, size: Math.min(FONT_SIZE + 1, Math.max(10, cell)) };
    node.append(svg("g", { "data-axis": axis },
      ...positions(range).filter((at) => (at - range[0]) % every === 0).map((at) => axisLabel(run, at, axis, geometry, style))));
  }
  return { node, geometry };
}

function positions([from, to]) {
  return Array.from({ length: to - from }, (_, i) => from + i);
}

function axisLabel(run, at, axis, { cell, left, top, rows, keys }, style) {
  const middle = (at - (axis === "row" ? rows : keys)[0] + 0.5) * cell;
  const node = axis === "row" ? words(left - 7, top + middle + 4, placedLabel(run, at), { ...style, anchor: "end" })
    : words(left + middle + 3, top - 7, placedLabel(run, at), { ...style, rotate: SLANT });
  node.setAttribute("data-label", at);
  return node;
}

/**
 * The map on the page, in `root`. `onPoint({query, key, axis} | null)` hears what the pointer or the cursor is on (of an
 * axis' label one of the two is null), `onPick({query, key})` what was chosen, `onMove(rows, keys)` a wish to shift the block.
 * `picked()` is the token whose row the cursor begins in, where the map has it.
 */
export function createMap(root, { onPoint, onPick, onMove, picked }) {
  let shown = null, cursor = null;

  function place(event) {
    const { left, top, cell, rows, keys } = shown.geometry, box = shown.node.getBoundingClientRect();
    const scale = shown.geometry.width / box.width;
    const i = Math.floor(((event.clientY - box.top) * scale - top) / cell);
    const j = Math.floor(((event.clientX - box.left) * scale - left) / cell);
    const query = i >= 0 && i < rows[1] - rows[0] ? rows[0] + i : null;
    const key = j >= 0 && j < keys[1] - keys[0] ? keys[0] + j : null;
    return query === null && key === null ? null : { query, key };
  }

  function point(at) {
    shown.marks.replaceChildren();
    if (at) mark(at);
    onPoint(at);
  }

  function mark({ query, key }) {
    const { left, top, cell, rows, keys } = shown.geometry, { ink } = shown.look;
    const across = cell * (keys[1] - keys[0]), down = cell * (rows[1] - rows[0]);
    const band = { fill: "none", stroke: ink.accent, "stroke-width": 1.5, "pointer-events": "none" };
    if (query !== null) {
      shown.marks.append(svg("rect", { ...band, x: left, y: top + cell * (query - rows[0]), width: across, height: cell }));
      emphasize(query, "row");
    }
    if (key !== null) {
      shown.marks.append(svg("rect", { ...band, x: left + cell * (key - keys[0]), y: top, width: cell, height: down }));
      emphasize(key, "column");
    }
  }

  /** The label of a row or column in the accent's colour, above its neighbours; where it was skipped it appears. */
  function emphasize(at, axis) {
    const { ink } = shown.look;
    const node = axisLabel(shown.map.run, at, axis, shown.geometry, { fill: ink.accent, size: 13, weight: 700 });
    for (const [name, value] of Object.entries({ stroke: ink.paper, "stroke-width": 5, "paint-order": "stroke" })) {
      node.setAttribute(name, value);
    }
    shown.marks.append(node);
  }

  root.addEventListener("pointermove", (event) => shown && point(place(event)));
  root.addEventListener("pointerleave", () => shown && point(cursor));
  root.addEventListener("click", (event) => {
    const at = shown && place(event);
    if (!at) return;
    cursor = at.query !== null && at.key !== null ? at : null;
    onPick(at);
  });
  root.addEventListener("focus", () => shown && root.matches(":focus-visible") && point(cursor ??= first()));
  root.addEventListener("blur", () => {
    cursor = null;
    if (shown) point(null);
  });
  root.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!shown || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" && cursor) onPick(cursor);
    if (!step) return;
    event.preventDefault();
    const { rows, keys } = shown.geometry;
    if (event.shiftKey) {
      onMove(step[0] * Math.ceil((rows[1] - rows[0]) / 2), step[1] * Math.ceil((keys[1] - keys[0]) / 2));
      return;
    }
    cursor ??= first();
    const clamp = (value, [from, to]) => Math.min(to - 1, Math.max(from, value));
    cursor = { query: clamp(cursor.query + step[0], rows), key: clamp(cursor.key + step[1], keys) };
    point(cursor);
  });

  function first() {
    const { rows, keys } = shown.geometry, token = picked();
    return { query: token >= rows[0] && token < rows[1] ? token : rows[0], key: keys[0] };
  }

  return {
    /** Show a map; arguments as of drawMap. */
    show(map, model, room, look) {
      const { node, geometry } = drawMap(map, model, room, look);
      const marks = svg("g", { "data-marks": "" });
      node.append(marks);
      if (cursor && (cursor.query < map.rows[0] || cursor.query >= map.rows[1] || cursor.key < map.keys[0] || cursor.key >= map.keys[1])) cursor = null;
      node.style.width = `${geometry.width * zoom()}px`;
      shown = { node, geometry, marks, map, look };
      root.replaceChildren(node);
      if (cursor) point(cursor);
    },
    clear() {
      shown = cursor = null;
      root.replaceChildren();
    },
    get map() {
      return shown?.map ?? null;
    },
  };
}

/** A value of a map in words, exact to the last digit of float32: "masked" where the query may not see the key. */
export function valueAt({ layer, rows, keys, cells }, model, query, key) {
  if (!visibility(model, layer)(query, key)) return "masked";
  return exact(cells[(query - rows[0]) * (keys[1] - keys[0]) + key - keys[0]]);
}
