// The stages of a model: how many requests came to each, how many left there, who is there now.

import { element, write } from "./dom.js";
import { count, share } from "./figures.js";

export class Stages {
  constructor() {
    this.version = null; // that the rows are of
    this.rows = [];
    this.list = element("div", { class: "stages" });
    const legend = (paint, text) => {
      const patch = element("i");
      patch.style.background = `var(--${paint})`;
      return element("span", {}, patch, text);
    };
    this.node = element("section", { class: "card wide" }, element("h3", {}, "Stages"), this.list,
      element("div", { class: "legend" }, legend("green", "left here"), legend("fill", "went on"), legend("track", "left before")));
  }

  show(model, feed) {
    if (this.version !== model.version) { // another may have other stages
      this.version = model.version;
      this.rows = [];
      this.list.replaceChildren();
    }
    const left = model.figures.left_at;
    const earlier = feed.before(model.name)?.left_at ?? left;
    const recent = left.map((number, stage) => Math.max(0, number - (earlier[stage] ?? 0)));
    const lane = feed.picture?.models[model.name];
    const now = present(model, feed.picture);
    const all = left.reduce((sum, number) => sum + number, 0);
    const allRecent = recent.reduce((sum, number) => sum + number, 0);
    let came = all;
    left.forEach((number, stage) => {
      this.rows[stage] ??= this.added(stage, model);
      const row = this.rows[stage];
      row.left.style.width = all ? `${(100 * number) / all}%` : "0";
      row.on.style.width = all ? `${(100 * (came - number)) / all}%` : "0";
      came -= number;
      write(row.counts, `${count(number)} left (${share(number, all)})`);
      write(row.recent, `last minute ${share(recent[stage], allRecent)}${now[stage] ? `, ${now[stage]} here now` : ""}`);
      tell(row.memory, lane, stage);
    });
  }

  added(stage, model) {
    const row = { left: element("div", { class: "left" }), on: element("div", { class: "on" }) };
    row.counts = element("span");
    row.recent = element("span", { class: "soft" });
    row.memory = element("span");
    const cached = model.lookups.includes(stage) ? element("span", { class: "tag", title: "A learned cache is asked after this stage." }, "cache") : null;
    this.list.append(element("div", { class: "stage" },
      element("span", {}, `stage ${stage}`, cached),
      element("div", { class: "bar" }, row.left, row.on),
      element("div", { class: "figures" }, row.counts, row.memory, element("br"), row.recent)));
    return row;
  }
}

// How many requests of the model are at each stage in the picture.
function present(model, picture) {
  const at = new Array(model.stages).fill(0);
  for (const worker of picture?.workers ?? []) {
    for (const batch of worker.batches) {
      if (batch.model === model.name) at[batch.stage] += batch.size;
    }
  }
  return at;
}

function tell(place, lane, stage) {
  if (!lane || lane.resident === null) return;
  const [text, kind] = lane.resident.includes(stage) ? ["in memory", "there"]
    : lane.loading.includes(stage) ? ["loading", "coming"] : ["not in memory", ""];
  if (place.textContent !== text) place.replaceChildren(element("span", { class: `tag ${kind}` }, text));
}
