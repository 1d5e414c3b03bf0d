/** The layer as the textbook draws it: the residual stream on the left, what is added to it on the right. */

import { svg } from "../dom.js";
import { words } from "../figure.js";
import { isPerHead, layout, WIDTH } from "./layer-points.js";

const HEIGHT = 38; // of a box

/**
 * The drawing as a group, `{group, width, height}`. `chosen` is the kind of the box that is open.
 */
export function drawDiagram(model, layer, n, chosen, ink) {
  const { boxes, arrows, sums, height } = layout(model, layer, n);
  const group = svg("g", {});
  for (const { path, label, at, plain } of arrows) {
    group.append(svg("polyline", {
      points: path.map((point) => point.join(",")).join(" "), fill: "none", stroke: ink.muted, "stroke-width": 1.5,
    }));
    if (!plain) group.append(head(path, ink));
    if (label) group.append(words(at[0], at[1], label, { fill: ink.muted, size: 10.5, anchor: at[2] ?? "start" }));
  }
  for (const { x, y } of sums) {
    group.append(svg("circle", { cx: x, cy: y, r: 11, fill: ink.paper, stroke: ink.ink, "stroke-width": 1.5 }),
      svg("path", { d: `M${x - 6} ${y}h12M${x} ${y - 6}v12`, stroke: ink.ink, "stroke-width": 1.5 }));
  }
  for (const box of boxes) group.append(drawBox(box, box.kind === chosen, ink));
  return { group, width: WIDTH, height };
}

/** The tip of an arrow at the end of its path. */
function head(path, ink) {
  const [[fromX, fromY], [x, y]] = path.slice(-2);
  const angle = (Math.atan2(y - fromY, x - fromX) * 180) / Math.PI;
  return svg("path", { d: "M0 0L-7 -3.5V3.5Z", fill: ink.muted, transform: `translate(${x} ${y}) rotate(${angle})` });
}

function drawBox({ kind, x, y, width, title }, open, ink) {
  const left = x - width / 2, top = y - HEIGHT / 2;
  const outline = { width, height: HEIGHT, rx: 6, fill: ink.paper, stroke: open ? ink.accent : ink.ink, "stroke-width": open ? 3 : 1.2 };
  const node = svg("g", {
    role: "button", tabindex: open ? 0 : -1, "data-kind": kind, "aria-pressed": String(open), cursor: "pointer",
    "aria-label": `${title}: ${kind}`,
  });
  if (isPerHead(kind)) {
    for (const behind of [6, 3]) node.append(svg("rect", { ...outline, x: left + behind, y: top + behind }));
  }
  node.append(svg("rect", { ...outline, x: left, y: top }),
    words(x, y - 1, title, { fill: ink.ink, size: 13, anchor: "middle", weight: 600 }),
    words(x, y + 13, kind, { fill: open ? ink.accent : ink.muted, size: 10.5, anchor: "middle" }));
  return node;
}
