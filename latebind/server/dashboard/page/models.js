// All models: how much of each is asked for, how it fares, what of it lies in memory.

import { KeyFigures, Table, element } from "./dom.js";
import { NOTHING, bytes, count, gathered, lately, milliseconds, padding, quantile, rate, share } from "./figures.js";

const WINDOW = 10; // seconds that rates and percentiles are of
const ENOUGH = 0.95; // of requests in time: where there are fewer, their share is red

export class Models {
  constructor() {
    this.pictureEvery = 1000;
    this.key = new KeyFigures();
    this.table = null;
    this.sized = false; // whether rows of some model differ in size
    this.place = element("section", { class: "card" });
    const note = `Rates and percentiles cover the last ${WINDOW} seconds; totals count from the start of the engine. Goodput: answers within ` +
      "their deadlines. In time: their share of all requests that were answered, refused, late or failed; red below 95 %. " +
      "Of models whose rows differ in size, length/s counts what was answered in tokens of texts, or the product of their sizes; " +
      "padding is how much longer rows ran than they are.";
    this.node = element("div", {}, element("h2", {}, "Models"), this.key.node, this.place, element("p", { class: "note" }, note));
  }

  show(feed) {
    const rows = lately(feed.rows, WINDOW);
    const memory = feed.data.snapshot.memory;
    this.showKey(feed, rows, memory);
    const sized = Object.values(feed.data.snapshot.models).some((one) => one.lengths !== undefined);
    if (this.table === null || sized !== this.sized) {
      this.sized = sized;
      this.table = this.made(memory !== undefined, sized);
    }
    this.table.show(feed.data.models.map((model) => described(model, feed, rows, memory)));
  }

  showKey(feed, rows, memory) {
    const all = gathered(rows, null);
    const pairs = [
      ["Models", count(feed.data.models.length)],
      ["Requests a second", rate(all.answered + all.refused + all.lost, all.seconds)],
      ["Answered a second", rate(all.answered, all.seconds)],
      ["Under way", count(Object.values(feed.data.snapshot.models).reduce((sum, one) => sum + one.pending, 0))],
    ];
    if (memory) {
      const used = Object.values(memory.models).reduce((sum, one) => sum + one.resident_bytes, 0);
      pairs.push(["Memory", `${bytes(used)} of ${bytes(memory.budget_bytes)}`]);
    }
    this.key.show(pairs);
  }

  made(limited, sized) {
    const table = new Table([
      ["Model", (row) => row.link],
      ["State", (row) => row.state],
      ["Requests/s", (row) => row.rate],
      ["p50", (row) => row.p50],
      ["p99", (row) => row.p99],
      ["Goodput/s", (row) => row.goodput],
      ...(sized ? [["Length/s", (row) => row.lengths], ["Padding", (row) => row.padding]] : []),
      ["In time", (row) => row.inTime, (row) => (row.timely ? "" : "late")],
      ["Under way", (row) => row.pending],
      ["Answered", (row) => row.answered],
      ...(limited ? [["In memory", (row) => row.memory], ["Importance", (row) => row.importance]] : []),
    ]);
    const worth = "Importance: what keeping a byte of the model in memory is worth to the policy; what is worth least goes first when room is needed.";
    this.place.replaceChildren(table.node, ...(limited ? [element("p", { class: "note" }, worth)] : []));
    return table;
  }
}

function described(model, feed, rows, memory) {
  const figures = feed.data.snapshot.models[model.name];
  const sum = gathered(rows, model.name);
  const of = (part) => (figures ? milliseconds(quantile(figures.latency_seconds.le, sum.latency, part)) : NOTHING);
  const asked = sum.answered + sum.refused + sum.lost;
  const held = memory?.models[model.name];
  const importance = feed.picture?.models[model.name]?.importance;
  return {
    key: JSON.stringify([model.name, model.version, model.state, model.reason, figures !== undefined]),
    link: named(model, figures),
    state: element("span", { class: `state ${model.state === "READY" && !model.reason ? "good" : "bad"}`, title: model.reason }, model.state.toLowerCase()),
    rate: rate(asked, sum.seconds),
    p50: of(0.5),
    p99: of(0.99),
    goodput: rate(sum.answered, sum.seconds),
    lengths: figures?.lengths === undefined ? NOTHING : rate(sum.lengths, sum.seconds),
    padding: padding(figures),
    inTime: share(sum.answered, asked),
    timely: sum.answered >= ENOUGH * asked,
    pending: figures ? count(figures.pending) : NOTHING,
    answered: figures ? count(figures.requests.answered) : NOTHING,
    memory: held ? `${bytes(held.resident_bytes)} of ${bytes(held.bytes)}` : NOTHING,
    importance: importance ? importance.toExponential(1) : NOTHING,
  };
}

// The name leads to the model's own view, where it has figures to show.
function named(model, figures) {
  const kind = model.steps.length ? "query" : "model";
  const name = figures ? element("a", { href: `#/${kind}/${encodeURIComponent(model.name)}` }, model.name) : model.name;
  const tag = model.steps.length ? "query" : `version ${model.version}`;
  const reason = model.reason ? element("div", { class: "note" }, model.reason) : null;
  return element("span", {}, name, element("span", { class: "tag" }, tag), reason);
}
