/** Light or dark: what the reader chose, else what the system prefers. */

const system = matchMedia("(prefers-color-scheme: dark)");

/** Follow `state`'s theme with the page and its switch; a change of the system's choice counts too. */
export function followTheme(state, button) {
  const theme = () => state.get("theme") || (system.matches ? "dark" : "light");
  function apply() {
    document.documentElement.dataset.theme = theme();
    button.textContent = theme() === "dark" ? "Light" : "Dark";
  }
  button.addEventListener("click", () => state.set({ theme: theme() === "dark" ? "light" : "dark" }));
  system.addEventListener("change", () => {
    apply();
    state.touch("theme");
  });
  state.subscribe((changed) => changed.has("theme") && apply());
  apply();
  return theme;
}

/** By how much figures on the page are larger than in a file: as much as its letters, which grow on wide screens. */
export function zoom() {
  return parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
}

/** The theme's colours as CSS texts, for figures: ink, muted, paper, line, accent, action. */
export function inkOf() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["ink", "muted", "paper", "line", "accent", "action"].map((name) =>
    [name, style.getPropertyValue(`--${name}`).trim()]));
}
