// The share of samples that learned caches answered as the whole network does, with its interval, beside its target.
// With a floor also what each level of the operating curve promises, would answer, and how many requests ran at it.

import { element, shape } from "./dom.js";
import { count } from "./figures.js";

const [WIDTH, LEFT, RIGHT] = [440, 10, 430];

export class Fidelity {
  constructor() {
    this.place = element("div");
    this.node = element("section", { class: "card" }, element("h3", {}, "Fidelity of learned caches"), this.place);
    this.shown = "";
  }

  show(known, promised) {
    const state = JSON.stringify([known ?? null, promised]);
    if (state === this.shown) return;
    this.shown = state;
    this.node.classList.toggle("wide", (known?.fidelity ?? null) === null); // a sentence needs no tall card
    const found = levels(known?.levels ?? [], promised);
    if (known === undefined) {
      this.place.replaceChildren(...found, note("Not watched. With serve --adapt, models with learned caches are watched as soon as the adaptation service has started."));
    } else if (known.fidelity === null) {
      this.place.replaceChildren(...found, note(`Version ${known.version} is in use. No samples yet: some requests are also run to the end of the network, and compared.`));
    } else {
      const under = known.upper < known.target;
      const text = `${percent(known.fidelity)} of the last samples were answered as the full network answers them ` +
        `(${percent(known.lower)} to ${percent(known.upper)} with 95 % confidence); the target is ${percent(known.target)}. ` +
        `Version ${known.version}, ${count(known.sampled)} samples, ${count(known.alarms)} alarms, ` +
        `${count(known.retrained - known.refused)} versions published.`;
      this.place.replaceChildren(drawn(known, under), ...found, note(text));
    }
  }
}

// A line for each fidelity that requests were promised, or are watched for, the highest first; nothing without a floor.
function levels(watched, promised) {
  const names = new Set([...Object.keys(promised).map(Number), ...watched.map((level) => level.promised)]);
  return [...names].sort((one, other) => other - one).map((name) => {
    const level = watched.find((one) => one.promised === name);
    return note([`Promised ${percent(name)}: ${count(promised[String(name)] ?? 0)} requests`, ...heard(level)].join(", "));
  });
}

function heard(level) {
  if (level === undefined) return [];
  const stopped = level.used ? [] : ["stopped until samples show it again"];
  if (level.fidelity === null) return ["no samples yet", ...stopped];
  return [`samples say ${percent(level.fidelity)} (${percent(level.lower)} to ${percent(level.upper)})`, ...stopped];
}

function drawn(known, under) {
  const from = Math.max(0, Math.min(known.lower, known.target, known.fidelity) - 0.02);
  const at = (value) => LEFT + ((RIGHT - LEFT) * (value - from)) / (1 - from);
  const line = (value, name, y) => shape("text", { x: at(value), y, "text-anchor": value > 0.5 * (1 + from) ? "end" : "start", class: "soft" }, name);
  return shape("svg", { viewBox: `0 0 ${WIDTH} 64`, width: WIDTH, role: "img", "aria-label": "Fidelity with its interval and target" },
    shape("rect", { x: LEFT, y: 26, width: RIGHT - LEFT, height: 10, rx: 3, class: "track" }),
    shape("rect", { x: at(known.lower), y: 26, width: Math.max(2, at(known.upper) - at(known.lower)), height: 10, rx: 3, class: "band" }),
    shape("line", { x1: at(known.target), x2: at(known.target), y1: 20, y2: 42, class: "target" }),
    shape("circle", { cx: at(known.fidelity), cy: 31, r: 6, class: under ? "bad" : "good" }),
    line(known.target, `target ${percent(known.target)}`, 14),
    shape("text", { x: LEFT, y: 58, class: "soft" }, percent(from)),
    shape("text", { x: RIGHT, y: 58, "text-anchor": "end", class: "soft" }, "100 %"));
}

function note(text) {
  return element("p", { class: "note" }, text);
}

function percent(value) {
  return `${(100 * value).toFixed(1)} %`;
}
