/** The residual stream of some tokens between the layers, and what the model would say if it ended there. */

export const TOP = 5; // tokens that a prediction names
const BYTES_AT_ONCE = 8 << 20;
const MOST_TOKENS = 48, PREDICTED = 12; // columns of the two tables
const STRINGS_AT_ONCE = 1024;

/** How many tokens the table of a mode shows at a time: few enough that their states are a small answer in float32. */
export function columnsOf(mode, { d_model, layers }) {
  const fit = Math.floor(BYTES_AT_ONCE / (4 * d_model * (layers + 1)));
  return Math.max(4, Math.min(mode === "norms" ? MOST_TOKENS : PREDICTED, fit));
}

/** The states of tokens `from`..`to`: L+1 of `[tokens * d]`, what enters the first layer and what leaves each. */
export async function statesOf(service, model, run, [from, to], signal) {
  const rows = { start: from, stop: to };
  const tensors = await service.outputs(run, [
    { name: "layers.0.resid_pre", as: "first", rows }, { name: "layers.*.resid_post", as: "states", rows },
  ], { signal });
  return [tensors.first.data, ...Array.from({ length: model.layers }, (_, i) => tensors[`states.layers.${i}.resid_post`].data)];
}

/** Those of tokens `from`..`to` out of `held`, `{run, columns, states}` with the states of more tokens; null where it has not all. */
export function statesWithin(held, { d_model: d }, run, [from, to]) {
  if (held?.run !== run || from < held.columns[0] || to > held.columns[1]) return null;
  return held.states.map((data) => data.subarray((from - held.columns[0]) * d, (to - held.columns[0]) * d));
}

/** The Euclidean norm of each row of a state: of `[tokens * d]` numbers, one a token. */
export function norms(state, d) {
  return Float64Array.from({ length: state.length / d }, (_, token) => {
    let sum = 0;
    for (let j = token * d; j < (token + 1) * d; j++) sum += state[j] * state[j];
    return Math.sqrt(sum);
  });
}

/**
 * What each state says through the final norm, where there is one, and the unembedding: of each `{values, indices}`, [tokens,
 * TOP] logits and token ids, largest first. `name` is what the answer is held under.
 */
export async function predictions(service, model, states, name, signal) {
  const d = model.d_model, inputs = states.map(() => ({ start: model.layers }));
  const tensors = Object.fromEntries(states.map((data, i) => [`${i}.x`, { shape: [data.length / d, d], data }]));
  const fields = { inputs, outputs: [{ name: "logits", top_k: TOP, as: "top" }] };
  const found = (await service.send(tensors, fields, { signal, name })).tensors;
  return states.map((_, i) => ({ values: found[`${i}.top.values`].data, indices: found[`${i}.top.indices`].data }));
}

/**
 * What one row of a state says, exactly: `{indices, logits, probabilities}` of its TOP tokens. All logits are fetched for
 * it, since a probability is a logit's share in all of them.
 */
export async function exactPrediction(service, model, row, name, signal) {
  const fields = { start: model.layers, outputs: [{ name: "logits", as: "all" }] };
  const { tensors } = await service.send({ x: { shape: [1, model.d_model], data: row } }, fields, { signal, name });
  const all = tensors.all.data, largest = all.reduce((most, one) => Math.max(most, one), -Infinity);
  const sum = all.reduce((total, one) => total + Math.exp(one - largest), 0);
  const indices = strongest(all, TOP), probabilities = indices.map((i) => Math.exp(all[i] - largest) / sum);
  return { indices, logits: indices.map((i) => all[i]), probabilities };
}

/** The indices of the largest numbers, largest first, ties by lowest index. */
function strongest(values, count) {
  const found = [];
  for (let i = 0; i < values.length; i++) {
    if (found.length === count && !(values[i] > values[found.at(-1)])) continue;
    let at = found.length;
    while (at > 0 && values[i] > values[found[at - 1]]) at--;
    found.splice(at, 0, i);
    if (found.length > count) found.pop();
  }
  return found;
}

/** What token ids stand for: a run of them, as `label` of ../tokens.js takes it, and where each id is in it. */
export async function vocabularyOf(service, model, ids, signal) {
  const unique = [...new Set(ids)].sort((a, b) => a - b), strings = [];
  const at = new Map(unique.map((id, i) => [id, i]));
  if (!model.tokenizer) return { run: { ids: unique, strings: null, n: unique.length }, at };
  const most = Math.min(STRINGS_AT_ONCE, model.max_positions ?? STRINGS_AT_ONCE);
  for (let from = 0; from < unique.length; from += most) {
    // one row of what enters the first layer: no layer runs for it, and the answer names the tokens
    const body = { tokens: unique.slice(from, from + most), outputs: [{ name: "embeddings", rows: [0] }] };
    strings.push(...(await service.forward(body, { signal })).tokens.strings);
  }
  return { run: { ids: unique, strings, n: unique.length }, at };
}
