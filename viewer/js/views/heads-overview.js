/** Where in a long input the block of the large map lies: the small map of its head, with a frame that can be moved. */

import { svg } from "../dom.js";
import { frame, picture } from "../figure.js";

const SIDE = 190;

/** The small map in `root`; `onChoose(row, key)` hears where a block should begin, while somebody drags its frame. */
export function createOverview(root, { onChoose }) {
  let shown = null;

  function choose(event) {
    const box = root.firstChild.getBoundingClientRect(), { n, size } = shown;
    const at = (offset, length) => (offset / length) * n - size / 2;
    onChoose(at(event.clientY - box.top, box.height), at(event.clientX - box.left, box.width));
  }

  root.addEventListener("pointerdown", (event) => {
    if (!shown) return;
    root.setPointerCapture(event.pointerId);
    choose(event);
  });
  root.addEventListener("pointermove", (event) => shown && root.hasPointerCapture(event.pointerId) && choose(event));

  return {
    /** Draw the small map, where its canvas is there already, and the frame of a block of `n` tokens. */
    draw(canvas, { rows, keys }, n, { ink }) {
      shown = { n, size: rows[1] - rows[0] };
      const scale = SIDE / n, side = Math.max(4, scale * shown.size);
      const node = frame(SIDE, SIDE, ink, `rows ${rows[0]} to ${rows[1] - 1}, keys ${keys[0]} to ${keys[1] - 1} of ${n}`);
      if (canvas) node.append(picture(canvas, 0, 0, SIDE, SIDE));
      node.append(
        svg("rect", { x: 0.5, y: 0.5, width: SIDE - 1, height: SIDE - 1, fill: "none", stroke: ink.line }),
        svg("rect", {
          x: Math.min(SIDE - side - 1, scale * keys[0]) + 0.75, y: Math.min(SIDE - side - 1, scale * rows[0]) + 0.75,
          width: side, height: side, fill: "none", stroke: ink.accent, "stroke-width": 2.5,
        }),
      );
      root.replaceChildren(node);
    },
  };
}
