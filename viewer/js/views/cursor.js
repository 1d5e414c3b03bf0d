/** A cell of a heat map under the pointer, or under a cursor that the keyboard moves. */

import { svg } from "../dom.js";

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/**
 * Watch `root`, which is to have a tabindex. `onPoint({row, column} | null)` hears which cell it is on, `onPick(at)` which was
 * chosen (click, Enter), `onPage(step)` a wish for other rows (Page Up, Page Down: -1, 1).
 */
export function createCursor(root, { onPoint, onPick, onPage }) {
  let shown = null, cursor = null;

  function place(event) {
    const { geometry, node } = shown, box = node.getBoundingClientRect(), scale = geometry.width / box.width;
    const row = Math.floor(((event.clientY - box.top) * scale - geometry.top) / geometry.cellHeight);
    const bin = Math.floor(((event.clientX - box.left) * scale - geometry.left) / geometry.cellWidth);
    if (row < 0 || row >= geometry.rows || bin < 0 || bin >= geometry.bins) return null;
    return { row, column: geometry.strongest(row, bin) };
  }

  function point(at) {
    shown.marks.replaceChildren();
    if (at) {
      const { left, top, cellWidth, cellHeight, binOf } = shown.geometry;
      const band = { fill: "none", stroke: shown.ink.accent, "stroke-width": 2, "pointer-events": "none" };
      shown.marks.append(svg("rect", {
        ...band, x: left + cellWidth * binOf(at.column) - 1, y: top + cellHeight * at.row - 1,
        width: Math.max(3, cellWidth + 2), height: cellHeight + 2,
      }));
    }
    onPoint(at);
  }

  root.addEventListener("pointermove", (event) => shown && point(place(event)));
  root.addEventListener("pointerleave", () => shown && point(cursor));
  root.addEventListener("click", (event) => {
    const at = shown && place(event);
    if (!at) return;
    cursor = at;
    onPick(at);
  });
  root.addEventListener("focus", () => shown && root.matches(":focus-visible") && point(cursor ??= { row: 0, column: 0 }));
  root.addEventListener("blur", () => {
    cursor = null;
    if (shown) point(null);
  });
  root.addEventListener("keydown", (event) => {
    if (!shown || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = { PageUp: -1, PageDown: 1 }[event.key], step = STEPS[event.key];
    if (event.key === "Enter" && cursor) onPick(cursor);
    if (!step && !page) return;
    event.preventDefault();
    if (page) {
      onPage(page);
      return;
    }
    const times = event.shiftKey ? 10 : 1, clamp = (value, count) => Math.min(count - 1, Math.max(0, value));
    cursor ??= { row: 0, column: 0 };
    cursor = {
      row: clamp(cursor.row + times * step[0], shown.geometry.rows),
      column: clamp(cursor.column + times * step[1], shown.geometry.columns),
    };
    point(cursor);
    shown.marks.lastChild.scrollIntoView({ block: "nearest", inline: "nearest" });
  });

  return {
    /** Show a drawing in `root`: its node, and a geometry as of sheet.js. */
    show({ node, geometry }, ink) {
      const marks = svg("g", { "data-marks": "" });
      node.append(marks);
      shown = { node, geometry, marks, ink };
      if (cursor && (cursor.row >= geometry.rows || cursor.column >= geometry.columns)) cursor = null;
      root.replaceChildren(node);
      point(cursor);
    },
    clear() {
      shown = cursor = null;
      root.replaceChildren();
    },
  };
}
