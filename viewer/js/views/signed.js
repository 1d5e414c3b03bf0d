/** Colours for numbers of both signs: 0 is all but the paper, cold is negative, warm positive, evenly in OKLab. */

import { fromOklch } from "../colour.js";

const ENDS = {
  light: { lightness: [0.985, 0.4], cold: 258, warm: 42, chroma: 0.15 },
  dark: { lightness: [0.225, 0.86], cold: 245, warm: 62, chroma: 0.13 },
};
const STEPS = 256;
const made = {};

/** The bytes [r, g, b] of t in -1..1 in a theme. */
export function signedColour(theme, t) {
  const scale = (made[theme] ??= { cold: half(ENDS[theme], "cold"), warm: half(ENDS[theme], "warm") });
  const at = 3 * Math.round((STEPS - 1) * Math.min(1, Math.abs(t)));
  const side = t < 0 ? scale.cold : scale.warm;
  return [side[at], side[at + 1], side[at + 2]];
}

/** The same as a CSS colour. */
export function signedCss(theme, t) {
  return `rgb(${signedColour(theme, t).join(", ")})`;
}

/** A value within -scale..scale as -1..1, by the curve that is chosen; what is beyond is at the end. */
export function signedCurve(value, scale, curve) {
  const t = Math.min(1, Math.abs(value) / scale);
  return Math.sign(value) * (curve === "sqrt" ? Math.sqrt(t) : t);
}

/** What all but few of these numbers keep within: their magnitude's quantile, and at least the smallest that counts. */
export function scaleOf(values, quantile = 0.995) {
  const sizes = Float32Array.from(values, Math.abs).filter(Number.isFinite).sort();
  if (!sizes.length) return 1;
  return sizes[Math.min(sizes.length - 1, Math.floor(quantile * sizes.length))] || sizes.at(-1) || 1;
}

function half({ lightness, chroma, ...hues }, side) {
  const rgb = new Uint8ClampedArray(3 * STEPS);
  for (let i = 0; i < STEPS; i++) {
    const t = i / (STEPS - 1);
    const c = chroma * Math.sin(Math.PI * 0.6 * t);
    rgb.set(fromOklch(lightness[0] + (lightness[1] - lightness[0]) * t, c, hues[side]), 3 * i);
  }
  return rgb;
}
