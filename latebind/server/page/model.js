// One model: where requests leave it, how faithful its learned caches are, its batches and latencies.

import { Chart, colour } from "./charts.js";
import { Fidelity } from "./fidelity.js";
import { padding, rate } from "./figures.js";
import { Served } from "./served.js";
import { Series } from "./series.js";
import { Stages } from "./stages.js";

export class Model extends Served {
  constructor(name) {
    super(name);
    this.stages = new Stages();
    this.fidelity = new Fidelity();
    const counts = { bargap: 0.15, yaxis: { title: { text: "requests" } } };
    this.latency = new Chart("Latency since the start", { ...counts, xaxis: { type: "category", title: { text: "at most, ms" } } });
    this.batches = new Chart("Batches by size at their start", { bargap: 0.15, yaxis: { title: { text: "batches" } }, xaxis: { type: "category", title: { text: "requests in one" } } });
    this.series = new Series();
    this.place(this.stages.node, this.fidelity.node, this.latency.node, this.batches.node, ...this.series.nodes);
  }

  show(feed) {
    const model = this.find(feed);
    if (model === undefined) return;
    this.troubles.show(feed);
    this.showKey(feed, model, (sum) => [...lengths(model.figures, sum), ...worth(feed.picture?.models[this.name]?.importance)]);
    this.stages.show(model, feed);
    this.fidelity.show(feed.data.adaptation[this.name], model.figures.promised);
    this.latency.show([bars(...latencies(model.figures.latency_seconds))]);
    const sizes = model.figures.batches;
    this.batches.show([bars(Object.keys(sizes), Object.values(sizes))]);
    this.series.show(feed, this.name);
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
