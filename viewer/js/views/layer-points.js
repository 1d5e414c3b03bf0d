/** The points of a layer as boxes of its diagram: where they stand in each arrangement, and their shapes for an input. */

/** How the layers of a model are arranged: "pre_norm", "post_norm" or "parallel", by the points that it has. */
export function arrangementOf({ points }) {
  if (!("layers.0.resid_mid" in points)) return "parallel";
  return points["layers.0.resid_post"].normed ? "post_norm" : "pre_norm";
}

/** Whether a point has a matrix for each head. */
export function isPerHead(kind) {
  return ["q", "k", "v", "z"].includes(kind) || isMap(kind);
}

/** Whether a point is a map: queries down, keys across. */
export function isMap(kind) {
  return kind === "attn_scores" || kind === "attn_probs";
}

/** The shape of a point for `n` tokens. */
export function shapeOf(kind, { d_model, heads, kv_heads, d_k, d_v }, n) {
  switch (kind) {
    case "q": return [heads, n, d_k];
    case "k": return [kv_heads, n, d_k];
    case "v": return [kv_heads, n, d_v];
    case "z": return [heads, n, d_v];
    case "attn_scores": case "attn_probs": return [heads, n, n];
    default: return [n, d_model];
  }
}

/** The head of a point that belongs to a query head: k and v are shared by neighbours where there are fewer of them. */
export function headOf(kind, { heads, kv_heads }, head) {
  return kind === "k" || kind === "v" ? Math.floor((head * kv_heads) / heads) : head;
}

/** Whether a layer's maps have a mask. */
function isMasked(model, layer) {
  const { causal, window } = model.points[`layers.${layer}.attn_scores`];
  return causal || (window ?? null) !== null;
}

/** What a point is in the textbook's symbols; a layer without a mask is not said to have one. */
export function formulaOf(kind, model, layer) {
  const { textbook } = model.points[`layers.${layer}.${kind}`];
  return isMasked(model, layer) ? textbook : textbook.replace("mask(QK^T / sqrt(d_k))", "QK^T / sqrt(d_k)");
}

/** What a box says it does. */
function titleOf(kind, model, layer) {
  const { scale } = model.points[`layers.${layer}.attn_scores`], masked = isMasked(model, layer);
  return {
    resid_pre: "X", ln1: "LN", q: "Q", k: "K", v: "V", attn_probs: "softmax", z: "heads: PV", attn_out: "concat · W_O",
    attn_scores: `QKᵀ · ${Number(scale.toPrecision(4))}${masked ? ", mask" : ""}`,
    resid_mid: arrangementOf(model) === "post_norm" ? "X + T2" : "O", ln2: "LN", mlp_out: "FFN", resid_post: "H",
  }[kind];
}

const STREAM = 72, BRANCH = 300, STEP = 62; // centres of the two columns, and pixels from box to box
const WIDE = { attn_scores: 190, attn_probs: 190, z: 190, attn_out: 150, ln1: 130, ln2: 130, mlp_out: 130 };
const PLACES = { q: BRANCH - 105, k: BRANCH, v: BRANCH + 105, attn_scores: BRANCH - 52, attn_probs: BRANCH - 52 };

/** Width of the diagram. */
export const WIDTH = 505;

/**
 * The diagram of a layer: `{boxes, arrows, sums, height}`. A box is `{kind, x, y, width, title}` around its centre, an
 * arrow `{path: [[x, y], ...], label, at, plain}` (plain: without a tip), a sum `{x, y}`.
 */
export function layout(model, layer, n) {
  const boxes = [], arrows = [], sums = [], arrangement = arrangementOf(model);
  const shape = (kind) => shapeOf(kind, model, n).join(" × ");
  let y = 34;

  function box(kind, x = PLACES[kind] ?? BRANCH, at = y) {
    const onStream = x === STREAM;
    boxes.push({ kind, x, y: at, width: onStream ? 92 : WIDE[kind] ?? 92, title: titleOf(kind, model, layer) });
  }
  const arrow = (path, label = "", at = null, plain = false) => arrows.push({ path, label, at, plain });
  const HALF = 19, UNDER = HALF + 18; // from a box's centre to a label below it and the boxes stacked behind

  /** Multi-head attention out of rows that come down the branch at `from`, by way of `lead`. */
  function attention(from, source, ...lead) {
    const bus = from + 12, top = bus + 16 + HALF;
    arrow([...lead, [BRANCH, from], [BRANCH, bus]], shape(source), [BRANCH + 8, from + 9], true);
    for (const kind of ["q", "k", "v"]) {
      arrow([[BRANCH, bus], [PLACES[kind], bus], [PLACES[kind], top - HALF]]);
      box(kind, PLACES[kind], top);
    }
    const scores = top + STEP + 4, probs = scores + STEP, z = probs + STEP;
    arrow([[PLACES.q, top + HALF], [PLACES.q, scores - HALF]], shape("q"), [PLACES.q - 6, top + UNDER, "end"]);
    arrow([[PLACES.k, top + HALF], [PLACES.k, scores - HALF]], shape("k"), [PLACES.k + 6, top + UNDER]);
    box("attn_scores", PLACES.attn_scores, scores);
    arrow([[PLACES.attn_scores, scores + HALF], [PLACES.attn_scores, probs - HALF]], shape("attn_scores"), [PLACES.attn_scores + 8, scores + UNDER]);
    box("attn_probs", PLACES.attn_probs, probs);
    arrow([[PLACES.attn_probs, probs + HALF], [PLACES.attn_probs, z - HALF]], shape("attn_probs"), [PLACES.attn_probs + 8, probs + UNDER]);
    arrow([[PLACES.v, top + HALF], [PLACES.v, z - HALF - 16], [BRANCH + 70, z - HALF - 16], [BRANCH + 70, z - HALF]], shape("v"), [PLACES.v + 6, top + UNDER]);
    box("z", BRANCH, z);
    y = z + STEP;
    arrow([[BRANCH, z + HALF], [BRANCH, y - HALF]], shape("z"), [BRANCH + 8, z + UNDER]);
    box("attn_out");
  }

  const tap = (at) => arrow([[STREAM, at], [BRANCH - WIDE.ln1 / 2, at]], shape("resid_pre"), [STREAM + 12, at - 6]);
  let last = y; // where the stream was drawn down to
  const flow = (to) => { arrow([[STREAM, last], [STREAM, to]]); last = to; };

  /** The branch's end, whose box is `kind` at `y`, goes back to the stream. */
  function back(kind) {
    const at = y + HALF + 24;
    arrow([[BRANCH, y + HALF], [BRANCH, at], [STREAM + 11, at]], shape(kind), [BRANCH - 8, at - 6, "end"]);
    flow(at - 11);
    sums.push({ x: STREAM, y: at });
    last = at + 11;
    y = at;
  }
  /** A box on the stream, below what is there. */
  function onStream(kind, step = 46) {
    y += step;
    flow(y - HALF);
    box(kind, STREAM);
    last = y + HALF;
  }
  function ffn(tapped = true) {
    if (tapped) {
      y += STEP - 6;
      tap(y);
      box("ln2");
      arrow([[BRANCH, y + HALF], [BRANCH, y + STEP - HALF]], shape("ln2"), [BRANCH + 8, y + HALF + 15]);
    }
    y += STEP;
    box("mlp_out");
  }

  box("resid_pre", STREAM);
  last = y + HALF;
  if (arrangement === "post_norm") {
    const at = y + HALF + 22;
    attention(at, "resid_pre", [STREAM, at]);
    back("attn_out");
    onStream("resid_mid");
    onStream("ln1", 58);
    y += HALF + 20;
    arrow([[STREAM, y], [BRANCH, y], [BRANCH, y + STEP - 16 - HALF]], shape("ln1"), [STREAM + 90, y - 6]);
    y -= 16;
    ffn(false);
    back("mlp_out");
    onStream("ln2");
  } else {
    y += STEP - 6;
    tap(y);
    box("ln1");
    attention(y + HALF, "ln1");
    if (arrangement === "pre_norm") {
      back("attn_out");
      onStream("resid_mid");
      ffn();
    } else {
      const [from, side] = [y + HALF, STREAM + 66];
      y += 18;
      ffn();
      const to = y + HALF + 24;
      arrow([[BRANCH, from], [BRANCH, from + 10], [side, from + 10], [side, to], [STREAM + 11, to]], shape("attn_out"), [side + 10, from + 5]);
    }
    back("mlp_out");
  }
  onStream("resid_post");
  arrow([[STREAM, last], [STREAM, last + 26]], shape("resid_post"), [STREAM + 10, last + 20]);
  return { boxes, arrows, sums, height: last + 36 };
}
