/** A view's figure as a file: an SVG that needs nothing beside itself, or its picture as PNG. */

import { Told } from "./messages.js";

/** Save an <svg> element as it stands. */
export function saveSvg(figure, name) {
  download(new Blob([sourceOf(figure)], { type: "image/svg+xml" }), `${name}.svg`);
}

/** Save its picture, with `scale` pixels for each of its units. */
export async function savePng(figure, name, scale = 2) {
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([sourceOf(figure)], { type: "image/svg+xml" }));
  try {
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = scale * Number(figure.getAttribute("width"));
    canvas.height = scale * Number(figure.getAttribute("height"));
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
    if (!blob) throw new Told("Not saved", "the picture is too large for this browser; save it as SVG");
    download(blob, `${name}.png`);
  } finally {
    URL.revokeObjectURL(image.src);
  }
}

function sourceOf(figure) {
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(figure)}`;
}

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
