/** What is asked of the service for maps, and how its answers become cells. */

/** Up to so many tokens the small maps are whole; beyond, they show SAMPLES rows and the STRONGEST keys of each. */
export const WHOLE = 64;
export const SAMPLES = 48;
export const STRONGEST = 8;

const POINT = "attn_probs";

/** The name of a layer's maps. */
export function mapsOf(layer) {
  return `layers.${layer}.${POINT}`;
}

/** Whether a query may see a key in a layer: `(query, key) => boolean`, by the model's mask and its window. */
export function visibility(model, layer) {
  const window = model.points[mapsOf(layer)]?.window ?? Infinity, { causal } = model;
  return (query, key) => (!causal || key <= query) && query - key < window;
}

/** The query rows that small maps of a run show, from the first to the last, evenly. */
export function sampledRows(n) {
  if (n <= WHOLE) return Array.from({ length: n }, (_, i) => i);
  return Array.from({ length: SAMPLES }, (_, i) => Math.round((i * (n - 1)) / (SAMPLES - 1)));
}

/** The outputs for the small maps of these layers (ascending): one entry for each stretch of neighbours. */
export function smallMaps(run, layers) {
  const what = { as: "small", dtype: "float16" };
  if (run.n > WHOLE) Object.assign(what, { rows: sampledRows(run.n), top_k: STRONGEST });
  const stretches = [];
  for (const layer of layers) {
    const stretch = stretches.at(-1);
    if (stretch && stretch[1] === layer - 1) stretch[1] = layer;
    else stretches.push([layer, layer]);
  }
  return stretches.map(([from, to]) => ({ name: `layers.${from}-${to}.${POINT}`, ...what }));
}

/**
 * The small maps of a layer out of an answer to `smallMaps`: `{side, cells}`, `cells` [heads, side, side] in 0..1, and
 * NaN where all of a cell is masked. In a sampled map a cell is the sum of those of its row's strongest keys that fall
 * into it.
 */
export function smallCells(tensors, model, run, layer) {
  const rows = sampledRows(run.n), side = rows.length, sees = visibility(model, layer);
  const cells = new Float32Array(model.heads * side * side);
  const first = (bin) => Math.ceil((bin * run.n) / side), last = (bin) => Math.ceil(((bin + 1) * run.n) / side) - 1;
  const name = `small.${mapsOf(layer)}`;
  if (run.n <= WHOLE) cells.set(tensors[name].data);
  else {
    const { data: values } = tensors[`${name}.values`], { data: indices, shape } = tensors[`${name}.indices`];
    const k = shape[2];
    for (let at = 0; at < indices.length; at++) {
      if (indices[at] < 0) continue; // fewer keys than k are visible from this row
      cells[Math.floor(at / k) * side + Math.floor((indices[at] * side) / run.n)] += values[at];
    }
  }
  for (let i = 0; i < side; i++) {
    for (let j = 0; j < side; j++) {
      const query = rows[i];
      // the visible keys are one stretch that ends at the query, or all: the nearest key of the cell decides
      const nearest = Math.min(Math.max(query, first(j)), last(j));
      if (sees(query, nearest)) continue;
      for (let head = 0; head < model.heads; head++) cells[(head * side + i) * side + j] = NaN;
    }
  }
  return { side, cells };
}

/** The block of rows and keys that the large map shows: `{rows: [start, stop], keys: [start, stop], whole}`. */
export function blockOf(state, n) {
  const size = Math.min(state.get("size"), n);
  const from = (name) => Math.max(0, Math.min(state.get(name), n - size));
  const row = from("row"), key = from("key");
  return { rows: [row, row + size], keys: [key, key + size], whole: size === n };
}

const LONG = 256;

/** Whether a second pass over so many tokens costs more than the bytes of what one may bring along. */
export function isLong(run) {
  return run.n > LONG;
}

/**
 * The output for the large map of a head: its block in float32, so that values are exact. Of long inputs it has all
 * heads of the layer, `(heads)` of them, so that the next head needs no pass of its own.
 */
export function largeMap(run, layer, head, { rows, keys, whole }) {
  const output = { name: mapsOf(layer), as: "map" };
  if (!isLong(run)) output.heads = [head];
  if (!whole) {
    output.rows = { start: rows[0], stop: rows[1] };
    output.keys = { start: keys[0], stop: keys[1] };
  }
  return output;
}

/** The cells of a head in an answer to `largeMap`: [rows, keys]. */
export function largeCells({ shape, data }, head) {
  const size = shape[1] * shape[2];
  return shape[0] === 1 ? data : data.subarray(head * size, (head + 1) * size);
}

/** The shortest decimal that reads back to the same float32. */
export function exact(value) {
  if (!Number.isFinite(value)) return String(value);
  for (let digits = 1; digits < 9; digits++) {
    const short = Number(value.toPrecision(digits));
    if (Math.fround(short) === value) return String(short);
  }
  return String(Number(value.toPrecision(9)));
}
