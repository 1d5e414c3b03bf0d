/** The tokens of the run as a line of chips: one is picked, and values light them up. */

import { el } from "./dom.js";
import { curved, palette } from "./colour.js";
import { label } from "./tokens.js";

/** Fill a listbox; `onPick(position)` hears which token was chosen by pointer or keyboard. */
export function createStrip(root, { theme, onPick }) {
  let chips = [], picked = 0, lit = [], marked = [];

  root.addEventListener("click", (event) => {
    const chip = event.target.closest("[data-at]");
    if (chip) onPick(Number(chip.dataset.at));
  });
  root.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -chips.length, End: chips.length };
    const step = steps[event.key];
    if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const next = Math.min(chips.length - 1, Math.max(0, picked + step));
    onPick(next);
    chips[next]?.focus();
  });

  /** Scroll the line, and it alone, until a chip can be seen. */
  function reveal(chip) {
    const top = chip.offsetTop;
    if (top < root.scrollTop || top + chip.offsetHeight > root.scrollTop + root.clientHeight) {
      root.scrollTop = top - root.clientHeight / 2;
    }
  }

  function clear() {
    for (const chip of lit) {
      chip.style.removeProperty("background-color");
      chip.style.removeProperty("color");
    }
    for (const chip of marked) chip.classList.remove("query", "key");
    lit = [];
    marked = [];
  }

  return {
    /** Show the tokens of a run. */
    set(run) {
      clear();
      chips = Array.from({ length: run.n }, (_, at) => el("span", {
        class: "chip", role: "option", "data-at": at, tabindex: -1, "aria-selected": "false", dir: "ltr",
        title: `token ${at}, id ${run.ids[at]}`,
      }, label(run, at)));
      root.replaceChildren(...chips);
      root.hidden = false;
    },
    /** Show which token is picked. */
    pick(position) {
      chips[picked]?.setAttribute("aria-selected", "false");
      chips[picked]?.setAttribute("tabindex", "-1");
      picked = position;
      const chip = chips[picked];
      if (!chip) return;
      chip.setAttribute("aria-selected", "true");
      chip.setAttribute("tabindex", "0");
      reveal(chip);
    },
    /** Light tokens up: `values` maps positions to values in 0..1; `query` and `key` get a frame. */
    light(values, curve, { query = null, key = null } = {}) {
      clear();
      const scale = palette(theme());
      for (const [at, value] of values) {
        const chip = chips[at];
        if (!chip || !(value > 0)) continue;
        const t = curved(value, curve);
        chip.style.backgroundColor = scale.css(t);
        chip.style.color = (t > 0.5) === (theme() === "light") ? "#fff" : "#111";
        lit.push(chip);
      }
      for (const [at, name] of [[query, "query"], [key, "key"]]) {
        if (at !== null && chips[at]) {
          chips[at].classList.add(name);
          marked.push(chips[at]);
        }
      }
      if (marked.length) reveal(marked[0]);
    },
    clear,
  };
}
