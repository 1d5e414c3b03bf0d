/** What stands on the page for a token: its string with what cannot be seen made visible, always as text. */

import { Told } from "./messages.js";

const MANY = 64;
const PICTURES = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "␍", "\u00a0": "⍽" };

/** The label of the token at a position of a run. */
export function label(run, position) {
  const string = run.strings?.[position];
  if (string === undefined || string === null) return `#${run.ids[position]}`;
  return string === "" ? "∅" : string.replace(/[\s\u0000-\u001f\u007f]/gu, picture);
}

/** A number of tokens in words. */
export function countOf(n) {
  return n === 1 ? "1 token" : `${n} tokens`;
}

/** A label of at most `most` characters. */
export function shortLabel(run, position, most = 12) {
  const characters = [...label(run, position)];
  return characters.length <= most ? characters.join("") : `${characters.slice(0, most - 1).join("")}…`;
}

/** The label with the token's position before it where there are many, so that equal ones can be told apart. */
export function placedLabel(run, position) {
  return run.n > MANY ? `${position} ${shortLabel(run, position, 9)}` : shortLabel(run, position, 14);
}

const repeats = new WeakMap(); // run -> the labels that it has more than once

/** Whether another token of the run reads the same. */
export function isRepeated(run, position) {
  if (!repeats.has(run)) {
    const seen = new Set(), again = new Set();
    for (let i = 0; i < run.n; i++) (seen.has(label(run, i)) ? again : seen).add(label(run, i));
    repeats.set(run, again);
  }
  return repeats.get(run).has(label(run, position));
}

function picture(character) {
  const code = character.codePointAt(0);
  return PICTURES[character] ?? (code < 32 ? String.fromCodePoint(0x2400 + code) : "␣");
}

/** A list of ids out of what somebody typed: numbers with anything but letters, signs and dots between them. */
export function idsOf(text) {
  const words = text.split(/[\s,;[\]()]+/).filter(Boolean);
  const wrong = words.find((word) => !/^\d{1,9}$/.test(word));
  if (wrong !== undefined) throw new Told("These are no token ids", `"${wrong.slice(0, 20)}" is not a token id; ids are whole numbers`);
  if (!words.length) throw new Told("These are no token ids", "there is no token id");
  return words.map(Number);
}
