/** The views as tabs. One that is hidden is told of what changed meanwhile when it is shown again. */

import { byId, el } from "./dom.js";

/** Tabs for these views; what was made of each lives on while it is hidden. */
export function createTabs(views, app) {
  const { state } = app;
  const entries = views.map((view) => ({ view, made: null, missed: new Set(["run"]), unfinished: new Set(), open: new Set() }));
  for (const entry of entries) {
    const { id, title } = entry.view;
    entry.panel = el("section", {
      id: `panel-${id}`, class: `panel panel-${id}`, role: "tabpanel", "aria-labelledby": `tab-${id}`, hidden: true,
    });
    entry.tab = el("button", {
      id: `tab-${id}`, type: "button", role: "tab", "aria-controls": `panel-${id}`, onclick: () => (entry === current() ? show() : state.set({ tab: id })),
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

  /** `app` for one view: what fails in its work, or is under way when it is left, is told to it again when it is shown. */
  function appOf(entry) {
    const guard = (work) => {
      const names = new Set(entry.telling);
      return app.guard(async () => {
        entry.open.add(names);
        try {
          return await work();
        } catch (error) {
          if (error?.name !== "AbortError") again(entry, names);
          throw error;
        } finally {
          entry.open.delete(names);
        }
      });
    };
    return Object.create(app, { guard: { value: guard } });
  }

  function again(entry, names) {
    for (const name of names) entry.unfinished.add(name);
  }

  function leave(entry) {
    for (const names of entry.open) again(entry, names);
    entry.made?.leave?.();
  }

  function show() {
    const shown = current();
    for (const entry of entries) {
      if (entry !== shown && !entry.panel.hidden) leave(entry);
      entry.panel.hidden = entry !== shown;
      entry.tab.setAttribute("aria-selected", String(entry === shown));
      entry.tab.setAttribute("tabindex", entry === shown ? "0" : "-1");
    }
    byId("help").textContent = shown.view.help ?? "";
    for (const name of shown.unfinished) shown.missed.add(name);
    shown.unfinished.clear();
    update(shown);
  }

  function update(entry) {
    // of a run that is over nothing comes any more: the view stays as it is until the next one
    if (!app.run || app.run.signal.aborted || !entry.missed.size) return;
    const missed = entry.missed;
    entry.missed = new Set();
    entry.made ??= entry.view.create(entry.panel, appOf(entry));
    const before = entry.telling; // a view that changes the state is told of that within
    entry.telling = missed;
    try {
      entry.made.update(missed);
    } finally {
      entry.telling = before;
    }
  }

  return {
    show,
    /** There is a new run; `changed` tells the view of it when the state is within it. */
    newRun() {
      for (const entry of entries) entry.missed.add("run");
    },
    /** The views are of a model that is gone: make each anew when there is a run. */
    forget() {
      for (const entry of entries) {
        entry.made?.leave?.();
        const panel = entry.panel.cloneNode(false); // without what listens to it
        entry.panel.replaceWith(panel);
        Object.assign(entry, { panel, made: null, missed: new Set(["run"]), unfinished: new Set(), open: new Set() });
      }
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
