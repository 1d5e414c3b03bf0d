/** Elements out of nested calls. Strings become text nodes, so nothing that came from a model is ever read as HTML. */

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: attributes (`on...` functions are listeners, `class`, `data-...`), then children. */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** An SVG element, likewise. Style it by attributes alone, so that a saved figure looks the same. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(key.slice(2).toLowerCase(), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** The element with this id, which is in index.html. */
export function byId(id) {
  return document.getElementById(id);
}

/** A row of choices of which one holds: radio buttons in one frame. `choices` maps values to labels. */
export function segmented(label, choices, value, onChange) {
  const group = `choice-${nextGroup++}`;
  const options = Object.entries(choices).map(([key, text]) =>
    el("label", {}, el("input", {
      type: "radio", name: group, value: key, checked: key === value, onchange: () => onChange(key),
    }), el("span", {}, text)));
  const node = el("div", { class: "segmented", role: "radiogroup", "aria-label": label }, ...options);
  /** Show another value without telling anybody. */
  node.choose = (chosen) => {
    for (const input of node.querySelectorAll("input")) input.checked = input.value === chosen;
  };
  return node;
}
let nextGroup = 0;

/** A labelled list to choose a number 0..count-1 from. */
export function numberSelect(label, count, value, onChange) {
  const select = el("select", { "aria-label": label, onchange: () => onChange(Number(select.value)) });
  for (let i = 0; i < count; i++) select.append(el("option", { value: i }, String(i)));
  select.value = String(value);
  const node = el("label", { class: "number" }, el("span", {}, label), select);
  node.choose = (chosen) => { select.value = String(chosen); };
  return node;
}
