/** Calls to the service: the key, waiting while it loads or is full, refusals in its own words, and a bounded cache. */

import { Told } from "./messages.js";
import { pack, parse } from "./safetensors.js";

const CACHE_BYTES = 96 << 20;
const ROWS_AT_ONCE = 512; // rows of calls under way; a longer one goes by itself, and the next waits here, not there

/** A refusal: `status`, `code`, `detail` (the message) and `errors` ([{pointer, message}]) as the service gave them. */
export class Refusal extends Told {
  constructor(status, body) {
    super(body.title ?? "The service refused", body.detail ?? `it answered ${status}`);
    this.status = status;
    this.code = body.code ?? "";
    this.errors = body.errors ?? [];
  }
}

/**
 * `onWait(detail, seconds)` hears of each wait for a service that loads or is full; `askKey(refusal)` is a promise of
 * a key, or of null where nobody gives one; `onAnswer()` hears of each answer that is no failure to reach the service;
 * `onOtherModel(name)` hears that it has another model than `model()` told of, and what was asked for is given up.
 */
export function createService({ onWait, askKey, onAnswer, onOtherModel }) {
  let key = null; // in memory alone
  let known = null, doubt = false, waits = 0; // doubt: it may have other weights now
  const cache = boundedCache(CACHE_BYTES), lane = createLane(ROWS_AT_ONCE);
  const traffic = { calls: 0, bytes: 0, usage: null };

  async function call(path, options, signal) {
    for (;;) {
      const headers = { ...options.headers, ...(key === null ? {} : { Authorization: `Bearer ${key}` }) };
      let response;
      try {
        response = await fetch(path, { ...options, headers, signal, cache: "no-store", credentials: "same-origin" });
      } catch (error) {
        if (error.name === "AbortError") throw error;
        doubt = true;
        throw new Refusal(0, { detail: "the service cannot be reached", title: "No answer", code: "unreachable" });
      }
      onAnswer();
      if (response.ok) return response;
      const refusal = new Refusal(response.status, await response.json().catch(() => ({})));
      signal?.throwIfAborted(); // in the middle of the body too
      const seconds = Number(response.headers.get("Retry-After"));
      if ((response.status === 503 || response.status === 429) && seconds > 0) {
        waits += 1;
        onWait(refusal.message, seconds);
        try {
          await pause(1000 * seconds, signal);
        } finally {
          waits -= 1;
          if (!waits) onWait(null, 0);
        }
      } else if (response.status === 401) {
        const given = await askKey(refusal);
        if (given === null) throw refusal;
        key = given;
      } else throw refusal;
    }
  }

  /** One answer of POST /forward: `{tensors, tokens, usage}`. Refusals are thrown; a signal that aborts, too. */
  async function forward(body, { signal } = {}) {
    const name = JSON.stringify(body);
    return answer(name, "application/json", name, (body.tokens ?? body.x ?? []).length, signal);
  }

  /** The same for float32 tensors that are sent in binary, `{name: {shape: [rows, width], data}}`, and the other fields. */
  async function send(tensors, fields, { signal, name = null } = {}) {
    const rows = Object.values(tensors).reduce((sum, { shape }) => sum + shape[0], 0);
    return answer(name, "application/x-safetensors", pack(tensors, JSON.stringify(fields)), rows, signal);
  }

  /** The answer to a body, held under a name unless that is null. */
  async function answer(name, type, body, rows, signal) {
    const held = name === null ? null : cache.get(name);
    if (held) return held;
    const leave = await lane.enter(rows, signal);
    let buffer;
    try {
      if (doubt) {
        const { name: now, weights_sha256: weights } = await describe(signal);
        if (now !== known.name || weights !== known.weights_sha256) other(now);
        doubt = false;
      }
      const response = await call("forward", {
        method: "POST",
        headers: { "Content-Type": type, Accept: "application/x-safetensors" },
        body,
      }, signal);
      buffer = await response.arrayBuffer();
    } finally {
      leave();
    }
    const { tensors, metadata } = parse(buffer);
    if (metadata.model !== known.name) other(metadata.model);
    const found = { tensors, tokens: json(metadata.tokens), usage: json(metadata.usage) };
    traffic.calls += 1;
    traffic.bytes += buffer.byteLength;
    traffic.usage = found.usage;
    if (name !== null) cache.put(name, found, sizeOf(tensors));
    return found;
  }

  async function describe(signal) {
    return (await call("model", { headers: { Accept: "application/json" } }, signal)).json();
  }

  function other(name) {
    onOtherModel(name);
    throw new DOMException(`the service has another model: ${name}`, "AbortError");
  }

  return {
    /** The body of GET /model; answers of another are not held any longer. */
    async model(signal) {
      known = await describe(signal);
      doubt = false;
      cache.clear();
      return known;
    },
    forward,
    send,
    /** The model may be another now, under the same name too: the next call asks for it first. */
    suspect() {
      doubt = true;
    },
    /** The tensors of these outputs for a run's tokens, by name. */
    async outputs(run, outputs, { signal } = {}) {
      return (await forward({ tokens: run.ids, outputs }, { signal: signal ?? run.signal })).tensors;
    },
    /** Calls and bytes so far, and the usage of the latest. */
    traffic,
  };
}

/** A source of signals, each of which aborts the one before: for what only the latest choice needs. */
export function latest() {
  let controller = null;
  return {
    next(...others) {
      controller?.abort();
      controller = new AbortController();
      return AbortSignal.any([controller.signal, ...others]);
    },
    stop() {
      controller?.abort();
      controller = null;
    },
  };
}

function json(text) {
  return text === undefined ? null : JSON.parse(text);
}

function sizeOf(tensors) {
  return Object.values(tensors).reduce((sum, tensor) => sum + tensor.data.byteLength, 0);
}

/** A promise that is kept after so many milliseconds, and broken when the signal aborts. */
export function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

/** The least recently used goes first when all together have more than `most` bytes. */
function boundedCache(most) {
  const entries = new Map();
  let held = 0;
  return {
    get(name) {
      const entry = entries.get(name);
      if (!entry) return null;
      entries.delete(name);
      entries.set(name, entry); // to the end of the order in which they go
      return entry.value;
    },
    clear() {
      entries.clear();
      held = 0;
    },
    put(name, value, bytes) {
      if (entries.has(name) || bytes > most / 2) return;
      entries.set(name, { value, bytes });
      held += bytes;
      for (const [oldest, entry] of entries) {
        if (held <= most) break;
        entries.delete(oldest);
        held -= entry.bytes;
      }
    },
  };
}

/** Lets calls through in their order while those under way have at most `most` rows together, or there are none. */
function createLane(most) {
  const waiting = [];
  let rows = 0, calls = 0;

  function advance() {
    while (waiting.length && (calls === 0 || rows + waiting[0].size <= most)) {
      const { size, begin } = waiting.shift();
      rows += size;
      calls += 1;
      begin(() => {
        rows -= size;
        calls -= 1;
        advance();
      });
    }
  }

  return {
    /** A promise of a function to call at the end; it is refused with the signal's reason where that aborts first. */
    enter(size, signal) {
      signal?.throwIfAborted();
      return new Promise((resolve, reject) => {
        const entry = { size, begin: (leave) => (signal?.removeEventListener("abort", left), resolve(leave)) };
        const left = () => {
          waiting.splice(waiting.indexOf(entry), 1);
          reject(signal.reason);
        };
        signal?.addEventListener("abort", left);
        waiting.push(entry);
        advance();
      });
    },
  };
}
