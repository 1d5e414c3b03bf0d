/** The safetensors format: 8 bytes of length, a JSON header, then the tensors' bytes. */

/**
 * A body as `{tensors, metadata}`: of each name `{shape, dtype, data}` with `data` a Float32Array (F16 and BF16 are
 * widened, which is exact) or an Int32Array. Throws an Error that says what is wrong.
 */
export function parse(buffer) {
  if (buffer.byteLength < 8) throw new Error(`the answer has ${buffer.byteLength} bytes, fewer than a header`);
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  if (length > buffer.byteLength - 8) throw new Error("the answer ends within its header");
  const { __metadata__: metadata = {}, ...entries } =
    JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [begin, end] }] of Object.entries(entries)) {
    if (8 + length + end > buffer.byteLength) throw new Error(`the answer ends within ${name}`);
    const bytes = buffer.slice(8 + length + begin, 8 + length + end); // a copy begins where its numbers are aligned
    tensors[name] = { shape, dtype, data: numbers(dtype, bytes, name) };
  }
  return { tensors, metadata };
}

/** A body of float32 tensors, `{name: {shape, data}}`, with this text under the metadata key `request`. */
export function pack(tensors, request) {
  const header = { __metadata__: { request } };
  let at = 0;
  for (const [name, { shape, data }] of Object.entries(tensors)) {
    header[name] = { dtype: "F32", shape, data_offsets: [at, at + data.byteLength] };
    at += data.byteLength;
  }
  const text = new TextEncoder().encode(JSON.stringify(header)), length = 8 * Math.ceil(text.length / 8);
  const body = new Uint8Array(8 + length + at).fill(32, 8, 8 + length); // spaces, so that the numbers are aligned
  new DataView(body.buffer).setBigUint64(0, BigInt(length), true);
  body.set(text, 8);
  at = 8 + length;
  for (const { data } of Object.values(tensors)) {
    body.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
    at += data.byteLength;
  }
  return body;
}

function numbers(dtype, bytes, name) {
  switch (dtype) {
    case "F32": return new Float32Array(bytes);
    case "I32": return new Int32Array(bytes);
    case "F16": return Float32Array.from(new Uint16Array(bytes), (half) => HALVES[half]);
    case "BF16": {
      const wide = Uint32Array.from(new Uint16Array(bytes), (half) => half << 16);
      return new Float32Array(wide.buffer);
    }
    default: throw new Error(`${name} has the dtype ${dtype}, which this page does not read`);
  }
}

/** What each of the 65,536 half-precision patterns stands for. */
const HALVES = Float32Array.from({ length: 1 << 16 }, (_, bits) => {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
});
