/**
 * Colours for values from 0 to 1, perceptually uniform: lightness runs evenly in OKLab, hue and chroma follow.
 * On light paper large values are dark, on dark paper bright; 0 is all but the paper itself.
 */

const ENDS = {
  light: { lightness: [0.975, 0.27], hue: [225, 268], chroma: [0.004, 0.125] },
  dark: { lightness: [0.225, 0.955], hue: [268, 98], chroma: [0.02, 0.105] },
};
const STEPS = 256;
const made = {};

/** The scale of a theme: `rgb`, 256 x 3 bytes, and `css(t)`, the colour of t in 0..1. */
export function palette(theme) {
  made[theme] ??= make(ENDS[theme]);
  return made[theme];
}

/** A value in 0..1 by the curve that is chosen: "sqrt" lifts small ones, "linear" leaves them. */
export function curved(value, curve) {
  const t = value > 0 ? Math.min(value, 1) : 0;
  return curve === "sqrt" ? Math.sqrt(t) : t;
}

function make({ lightness, hue, chroma }) {
  const rgb = new Uint8ClampedArray(3 * STEPS);
  for (let i = 0; i < STEPS; i++) {
    const t = i / (STEPS - 1);
    // chroma is fullest past the middle, and fades to both ends where the gamut is narrow
    const c = chroma[0] + (chroma[1] - chroma[0]) * Math.sin(Math.PI * 0.8 * t);
    rgb.set(fromOklch(between(lightness, t), c, between(hue, t)), 3 * i);
  }
  return {
    rgb,
    css(t) {
      const at = 3 * Math.round((STEPS - 1) * Math.min(1, Math.max(0, t)));
      return `rgb(${rgb[at]}, ${rgb[at + 1]}, ${rgb[at + 2]})`;
    },
  };
}

function between([from, to], t) {
  return from + (to - from) * t;
}

/** OKLCH to the bytes of sRGB; hue in degrees. The matrices are those that define OKLab. */
export function fromOklch(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180), b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((linear) => 255 * (linear <= 0.0031308 ? 12.92 * linear : 1.055 * linear ** (1 / 2.4) - 0.055));
}
