// One model: where requests leave it, how faithful its learned caches are, its batches and latencies.

import { Chart, colour } from "./charts.js";
import { KeyFigures, element, write } from "./dom.js";
import { Fidelity } from "./fidelity.js";
import { count, gathered, lately, padding, percentile, rate } from "./figures.js";
import { Series } from "./series.js";
import { Stages } from "./stages.js";
import { Troubles } from "./troubles.js";

const WINDOW = 10;
export const ENDINGS = "Refused: told at once, for the reason that is named. Late: accepted, but not answered by its deadline. " +
  "Failed: its model raised. All three count from the start of the engine.";
const KINDS = { // how a request may end that is not answered, in the words of a person
  refused_late: "Refused, would be late",
  refused_full: "Refused, queue full",
  no_place: "Refused, no slot free",
  too_many_rows: "Refused, too many rows",
  no_engine: "Refused, no engine",
  unread: "Refused, too much to read",
  refused_loading: "Refused, being loaded",
  not_loaded: "Refused, cannot be loaded",
  expired: "Late",
  failed: "Failed",
};

export class Model {
  constructor(name) {
    this.pictureEvery = 500;
    this.name = name;
    this.title = element("h2", {}, name);
    this.troubles = new Troubles(name);
    this.key = new KeyFigures();
    this.endings = element("p", { class: "note" }, ENDINGS);
    this.stages = new Stages();
    this.fidelity = new Fidelity();
    const counts = { bargap: 0.15, yaxis: { title: { text: "requests" } } };
    this.latency = new Chart("Latency since the start", { ...counts, xaxis: { type: "category", title: { text: "at most, ms" } } });
    this.batches = new Chart("Batches by size at their start", { bargap: 0.15, yaxis: { title: { text: "batches" } }, xaxis: { type: "category", title: { text: "requests in one" } } });
    this.series = new Series();
    this.node = element("div", {}, this.title, this.troubles.node, this.key.node, this.endings,
      element("div", { class: "cards" }, this.stages.node, this.fidelity.node, this.latency.node, this.batches.node, ...this.series.nodes));
  }

  show(feed) {
    const model = feed.model(this.name);
    if (model === undefined || model.figures === undefined) {
      write(this.title, `${this.name} is not served`);
      return;
    }
    write(this.title, `${model.name}, version ${model.version}`);
    this.troubles.show(feed);
    this.showKey(feed, model);
    this.stages.show(model, feed);
    this.fidelity.show(feed.data.adaptation[this.name], model.figures.promised);
    this.latency.show([bars(...latencies(model.figures.latency_seconds))]);
    const sizes = model.figures.batches;
    this.batches.show([bars(Object.keys(sizes), Object.values(sizes))]);
    this.series.show(feed, this.name);
  }

  showKey(feed, { figures, turnedAway }) {
    const sum = gathered(lately(feed.rows, WINDOW), this.name);
    const lost = unanswered({ ...figures.requests, ...turnedAway });
    this.endings.hidden = lost.length === 0;
    const { le, counts } = figures.latency_seconds;
    this.key.show([
      ["Answered", count(figures.requests.answered)],
      ["Answered a second", rate(sum.answered, sum.seconds)],
      ["p50 since the start", percentile(le, counts, 0.5)],
      ["p99 since the start", percentile(le, counts, 0.99)],
      ["Under way", count(figures.pending)],
      ...lost,
      ...lengths(figures, sum),
      ...worth(feed.picture?.models[this.name]?.importance),
    ]);
  }
}

// Of a model whose rows differ in length: what is answered beside rows, and how much longer than they are its rows run.
function lengths(figures, sum) {
  if (figures.lengths === undefined) return [];
  return [["Length (tokens) a second", rate(sum.lengths, sum.seconds)], ["Padding ratio", padding(figures)]];
}

// What keeping a byte of the model in memory is worth to the policy, where memory is limited.
function worth(importance) {
  return importance ? [["Worth of a byte in memory", importance.toExponential(1)]] : [];
}

// Key figures of the requests that were not answered, by kind, for models and queries; of kinds that there are.
export function unanswered(ends) {
  return Object.entries(KINDS).filter(([kind]) => ends[kind]).map(([kind, name]) => [name, count(ends[kind])]);
}

function bars(x, y) {
  return { type: "bar", x, y, marker: { color: colour("blue") } };
}

// Names and counts of the buckets, without those at either end in which there is nothing.
function latencies({ le, counts }) {
  const names = [...le.map((bound) => String(Number((bound * 1e3).toPrecision(6)))), "more"];
  const first = counts.findIndex((number) => number > 0);
  const last = counts.findLastIndex((number) => number > 0);
  return first < 0 ? [names, counts] : [names.slice(first, last + 1), counts.slice(first, last + 1)];
}
