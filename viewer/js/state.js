/** What the page shows, as flat names and values; all of it stands in the link behind the #. */

/** Names that every view shares, with the values that they begin with. */
export const SHARED = {
  kind: "text", // or "ids"
  text: "",
  ids: "",
  tab: "heads",
  layer: 0,
  head: 0,
  token: 0, // the token that is picked: a position, 0..N-1
  row: 0, // the first query row and the first key of the block that the large map shows
  key: 0,
  size: 64, // rows and keys of that block at most
  curve: "sqrt", // or "linear": how values become colours
  light: "row", // or "column": what lights up in the text under the pointer
  theme: "", // "light", "dark", or "" for what the system prefers
};

/** What each of these may be; a link that says something else means the value at the beginning. */
export const CHOICES = {
  kind: ["text", "ids"],
  size: [32, 64, 128],
  curve: ["sqrt", "linear"],
  light: ["row", "column"],
  theme: ["", "light", "dark"],
};

/** State with these names: values of numbers stay whole numbers from 0 on, all others are texts; `choices` as CHOICES. */
export function createState(defaults, choices = {}) {
  let values = { ...defaults }, limit = (next) => next;
  const listeners = new Set();

  function tell(changed) {
    if (changed.size) for (const listener of [...listeners]) listener(changed);
  }

  function change(asked) {
    const next = limit(asked);
    const changed = new Set(Object.keys(defaults).filter((name) => next[name] !== values[name]));
    values = next;
    tell(changed);
  }

  return {
    get: (name) => values[name],
    /** From now on all values go through this function, which gives those that can be. */
    limitBy(within) {
      limit = within;
      change(values);
    },
    /** Change some values, and tell who listens with the set of names that differ. */
    set: (patch) => change({ ...values, ...patch }),
    /** Tell who listens that these names are to be drawn again, though no value differs. */
    touch: (...names) => tell(new Set(names)),
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    /** The part of a link behind the #: what differs from the beginning. */
    toHash() {
      const query = new URLSearchParams();
      // a text without ids stays: a model without a tokenizer cannot take it, and says so
      const needless = values.kind === "text" ? "ids" : values.ids ? "text" : null;
      for (const [name, value] of Object.entries(values)) {
        // an input that was emptied is written too: no input at all means the example
        if ((value !== defaults[name] || name === values.kind) && name !== needless) query.set(name, String(value));
      }
      return query.toString();
    },
    /** Take all values from a link, and then these; what it does not name, or names wrongly, is as at the beginning. */
    fromHash(hash, patch = {}) {
      const query = new URLSearchParams(hash.replace(/^#/, ""));
      const next = { ...defaults };
      for (const [name, initial] of Object.entries(defaults)) {
        const given = query.get(name);
        if (given === null) continue;
        if (typeof initial === "number" && !/^\d{1,9}$/.test(given)) continue;
        const value = typeof initial === "number" ? Number(given) : given;
        if (choices[name]?.includes(value) ?? true) next[name] = value;
      }
      if (!query.has("kind") && query.has("ids") && !query.has("text")) next.kind = "ids"; // as somebody writes it by hand
      change({ ...next, ...patch });
    },
  };
}
