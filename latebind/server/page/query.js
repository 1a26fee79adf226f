// A query: its steps as a graph, what was planned for each and spent, and which models answered it.

import { Table, element, shape } from "./dom.js";
import { NOTHING, count, milliseconds, percentile, share } from "./figures.js";
import { Served } from "./served.js";

const WIDE = 8; // pixels of a letter of a name, in the mean of wide ones
const [UNDER, LINE, GAP, WIDEST] = [71, 17, 34, 230]; // what stands under the name in a box, and a line of the name

export class Query extends Served {
  constructor(name) {
    super(name);
    this.graph = element("div");
    this.table = new Table([
      ["Step", (row) => row.key],
      ["Answered", (row) => row.answered],
      ["Planned, mean", (row) => milliseconds(row.budget)],
      ["Spent, mean", (row) => milliseconds(row.spent)],
      ["Spent, p99", (row) => row.p99],
      ["Answered by", (row) => row.by],
    ]);
    const bars = "In each step: the mean time spent of the mean time planned, as numbers and as bars, spent below planned; red if more was spent.";
    this.place(
      element("section", { class: "card wide" }, element("h3", {}, "Steps"), this.graph, element("p", { class: "note" }, bars)),
      element("section", { class: "card wide" }, this.table.node));
  }

  show(feed) {
    const model = this.find(feed);
    if (model === undefined) return;
    this.troubles.show(feed);
    const steps = feed.data.snapshot.steps?.[this.name] ?? {};
    this.showKey(feed, model);
    const figures = model.steps.map((step) => described(step, steps[step.name]));
    this.graph.replaceChildren(drawn(model.steps, figures, feed.picture?.queries[this.name] ?? [], this.graph.clientWidth || 640));
    this.table.show(figures);
  }
}

function described(step, figures) {
  const number = figures?.spent_seconds.count ?? 0;
  const by = Object.entries(figures?.answered ?? {}).map(([name, times]) => `${name} ${share(times, number)}`);
  return {
    key: step.name,
    number,
    answered: count(number),
    budget: number ? figures.budget_seconds / number : null,
    spent: number ? figures.spent_seconds.sum / number : null,
    p99: number ? percentile(figures.spent_seconds.le, figures.spent_seconds.counts, 0.99) : NOTHING,
    by: by.join(", "),
  };
}

// Steps in rows, each behind all that it comes after.
function rowsOf(steps) {
  const depth = [];
  steps.forEach((step, place) => {
    depth[place] = 1 + Math.max(-1, ...step.after.map((before) => depth[before]));
  });
  const rows = Array.from({ length: Math.max(...depth) + 1 }, () => []);
  depth.forEach((row, place) => rows[row].push(place));
  return rows;
}

function drawn(steps, figures, now, room) {
  const rows = rowsOf(steps);
  const most = Math.max(...rows.map((row) => row.length));
  const width = Math.min(WIDEST, (room - 12 * (most - 1)) / most);
  const names = steps.map((step) => lines(step.name, width - 20));
  const tall = UNDER + LINE * Math.max(...names.map((some) => some.length));
  const places = new Map();
  rows.forEach((row, y) => row.forEach((step, x) => {
    const left = (room - row.length * width - (row.length - 1) * 12) / 2 + x * (width + 12);
    places.set(step, [left, y * (tall + GAP) + 1]);
  }));
  const edges = steps.flatMap((step, to) => step.after.map((from) => edge(places.get(from), places.get(to), width, tall)));
  const boxes = steps.map((_, place) => box(names[place], figures[place], now[place] ?? 0, places.get(place), [width, tall]));
  const height = rows.length * (tall + GAP) - GAP + 4;
  return shape("svg", { viewBox: `0 0 ${room} ${height}`, width: room, height, role: "img", "aria-label": "Steps of the query" }, ...edges, ...boxes);
}

function edge([fromX, fromY], [toX, toY], width, tall) {
  const [x, y, end, stop] = [fromX + width / 2, fromY + tall, toX + width / 2, toY];
  return shape("g", {},
    shape("path", { class: "edge", d: `M${x} ${y} C${x} ${y + GAP / 2} ${end} ${stop - GAP / 2} ${end} ${stop - 4}` }),
    shape("path", { class: "tip", d: `M${end} ${stop} l-4 -7 h8 z` }));
}

function box(name, figures, now, [x, y], [width, tall]) {
  const inner = width - 20;
  const most = Math.max(figures.budget ?? 0, figures.spent ?? 0) || 1;
  const over = figures.spent > figures.budget;
  const below = LINE * (name.length - 1);
  const bar = (value, top, kind) => shape("rect", { x: 10, y: top + below, width: (inner * (value ?? 0)) / most, height: 5, rx: 2, class: kind });
  const label = now ? `${count(figures.number)} answered, ${now} now` : `${count(figures.number)} answered`;
  return shape("g", { transform: `translate(${x} ${y})` },
    shape("rect", { width, height: tall, rx: 8, class: now ? "box busy" : "box" }),
    ...name.map((line, number) => shape("text", { x: 10, y: 20 + LINE * number, "font-weight": 600 }, line)),
    shape("text", { x: 10, y: 37 + below, class: "soft" }, label),
    shape("text", { x: 10, y: 54 + below, class: over ? "soft late" : "soft" }, `${milliseconds(figures.spent)} of ${milliseconds(figures.budget)}`),
    bar(figures.budget, 62, "track"), bar(figures.spent, 70, over ? "bad" : "mark"));
}

// A name in lines that there is room for, whatever its letters: names need have no place to break at.
function lines(name, room) {
  const most = Math.max(4, Math.floor(room / WIDE));
  return Array.from({ length: Math.ceil(name.length / most) }, (_, line) => name.slice(most * line, most * (line + 1)));
}
