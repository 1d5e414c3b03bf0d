/** The views as tabs. One that is hidden is told of what changed meanwhile when it is shown again. */

import { byId, el } from "./dom.js";

/** Tabs for these views; what was made of each lives on while it is hidden. */
export function createTabs(views, app) {
  const { state } = app;
  const entries = views.map((view) => ({ view, made: null, missed: new Set(["run"]) }));
  for (const entry of entries) {
    const { id, title } = entry.view;
    entry.panel = el("section", {
      id: `panel-${id}`, class: `panel panel-${id}`, role: "tabpanel", "aria-labelledby": `tab-${id}`, hidden: true,
    });
    entry.tab = el("button", {
      id: `tab-${id}`, type: "button", role: "tab", "aria-controls": `panel-${id}`, onclick: () => state.set({ tab: id }),
    }, title);
    byId("tabs").append(entry.tab);
    byId("panels").append(entry.panel);
  }
  byId("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = entries[(entries.indexOf(current()) + step + entries.length) % entries.length];
    state.set({ tab: next.view.id });
    next.tab.focus();
  });

  function current() {
    return entries.find((entry) => entry.view.id === state.get("tab")) ?? entries[0];
  }

  function show() {
    const shown = current();
    for (const entry of entries) {
      if (entry !== shown && !entry.panel.hidden) entry.made?.leave?.();
      entry.panel.hidden = entry !== shown;
      entry.tab.setAttribute("aria-selected", String(entry === shown));
      entry.tab.setAttribute("tabindex", entry === shown ? "0" : "-1");
    }
    byId("help").textContent = shown.view.help ?? "";
    update(shown);
  }

  function update(entry) {
    if (!app.run || !entry.missed.size) return;
    const missed = entry.missed;
    entry.missed = new Set();
    entry.made ??= entry.view.create(entry.panel, app);
    entry.made.update(missed);
  }

  return {
    show,
    /** There is a new run; `changed` tells the view of it when the state is within it. */
    newRun() {
      for (const entry of entries) entry.missed.add("run");
    },
    /** Some names of the state have changed. */
    changed(names) {
      for (const entry of entries) for (const name of names) entry.missed.add(name);
      if (names.has("tab")) {
        app.strip.clear();
        show();
      } else update(current());
    },
    /** The figure of the view that is shown, or null. */
    figure: () => current().made?.figure?.() ?? null,
  };
}
