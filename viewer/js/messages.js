/** What the page says beside its views: refusals, waits, the key it asks for, what is under way. */

import { byId, el } from "./dom.js";

const KEY = /^[\x20-\x7e]+$/; // what the service takes in its file of keys

/** What went wrong in words for the reader, under this title; anything else that is thrown is a fault of the page. */
export class Told extends Error {
  constructor(title, message) {
    super(message);
    this.title = title;
  }
}

/** The messages of the page; see each function. */
export function createMessages() {
  const problem = byId("problem"), status = byId("status"), keyForm = byId("key"), keyField = byId("key-field");
  let busy = 0, waiting = null, idle = "", asked = null, unreached = false;

  function refresh() {
    document.body.dataset.busy = String(busy);
    status.textContent = waiting ?? (asked ? "Waiting for an API key." : busy ? "Working…" : idle);
    status.classList.toggle("waiting", waiting !== null);
  }

  return {
    /** Show an error as the service words it: its detail, the fields at fault, and its code. */
    show(error) {
      // a detail often names its fields already
      const others = (error.errors ?? []).filter(({ pointer, message }) => !error.message.includes(`${pointer}: ${message}`));
      const fields = others.map(({ pointer, message }) =>
        el("li", {}, el("code", {}, pointer), ` ${message}`));
      problem.replaceChildren(
        el("p", {}, el("strong", {}, error.title ?? "This cannot be shown"), ": ", error.message),
        ...(fields.length ? [el("ul", {}, ...fields)] : []),
        ...(error.code ? [el("p", { class: "muted" }, "code ", el("code", {}, error.code),
          ...(error.status ? [`, status ${error.status}`] : []))] : []),
      );
      problem.hidden = false;
      unreached = error.code === "unreachable";
    },
    /** The service has answered: that it cannot be reached is over. */
    reached() {
      if (unreached) this.clear();
    },
    clear() {
      unreached = false;
      problem.hidden = true;
      problem.replaceChildren();
    },
    /** Something is under way (+1) or over (-1). */
    work(step) {
      busy += step;
      refresh();
    },
    /** The service loads or is full: its words, and in how many seconds it is asked again; null when that is over. */
    wait(detail, seconds) {
      waiting = detail === null ? null : `The service says: ${detail}. Asking again in ${seconds} s.`;
      refresh();
    },
    /** What stands in the status line while nothing is under way. */
    rest(text) {
      idle = text;
      refresh();
    },
    /** A promise of an API key, asked for once however many calls need it. */
    askKey(refusal) {
      this.show(refusal);
      asked ??= new Promise((resolve) => {
        keyForm.hidden = false;
        keyField.focus();
        keyForm.onsubmit = (event) => {
          event.preventDefault();
          const key = keyField.value.trim();
          if (!key) return;
          keyField.value = "";
          if (!KEY.test(key)) { // no header can hold it
            this.show(new Told("That is no API key", "it has a character that is not ASCII, such as a curly quote"));
            return;
          }
          keyForm.hidden = true;
          asked = null;
          refresh();
          this.clear();
          resolve(key);
        };
      });
      refresh();
      return asked;
    },
  };
}
