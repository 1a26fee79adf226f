// What is wrong, and all models, the worst and busiest first: how each fares, what of it lies in memory.

import { KeyFigures, Table, element, write } from "./dom.js";
import { bytes, count, gathered, lately, padding, percentile, rate, share } from "./figures.js";
import { Troubles } from "./troubles.js";

const WINDOW = 10; // seconds that rates and percentiles are of
const ENOUGH = 0.95; // of requests in time: where there are fewer, their share is red
const WIDE = "(min-width: 46rem)"; // as in the style sheet: narrower, idle models are folded

export class Models {
  constructor() {
    this.pictureEvery = 1000;
    this.troubles = new Troubles();
    this.key = new KeyFigures();
    this.picture = null; // the one that was counted last
    this.looks = []; // of one picture a second, the share of workers that ran
    this.kinds = ""; // of figures that some model has: the columns are for these
    this.place = element("section", { class: "card" });
    this.count = element("summary");
    this.idle = element("details", { class: "card" }, this.count);
    this.unfolded = null; // whether the page opened or folded it last; somebody else may have done otherwise since
    const note = `Rates and percentiles cover the last ${WINDOW} seconds; totals count from the start of the engine. Goodput: answers within ` +
      "their deadlines. In time: their share of all requests that were answered, refused, late or failed; red below 95 %. ";
    this.note = element("p", { class: "note" }, note);
    this.node = element("div", {}, this.troubles.node, this.key.node, this.place, this.idle, this.note);
  }

  show(feed) {
    const { models, snapshot, troubles, minute } = feed.data;
    const rows = lately(feed.rows, WINDOW);
    this.troubles.show(feed);
    this.showKey(feed, rows);
    const sized = Object.values(snapshot.models).some((one) => one.lengths !== undefined);
    this.make(snapshot.memory !== undefined, sized);
    const worst = (name) => troubles.findIndex((one) => one.model === name);
    const described = models.map((model) => row(model, feed, rows, troubles[worst(model.name)]));
    const asked = (name) => Math.ceil(Math.log2((minute.ended[name] ?? 0) + 1)); // coarse, so that rows keep their places
    const order = (name) => [worst(name) < 0 ? troubles.length : worst(name), -asked(name)];
    described.sort((one, other) => {
      const [a, b] = [order(one.name), order(other.name)];
      return a[0] - b[0] || a[1] - b[1] || one.name.localeCompare(other.name);
    });
    const busy = described.filter((one) => one.busy);
    const idle = described.filter((one) => !one.busy);
    this.table.show(busy);
    this.rest.show(idle);
    this.place.hidden = busy.length === 0;
    this.idle.hidden = idle.length === 0;
    const unfolded = busy.length === 0 || matchMedia(WIDE).matches;
    if (unfolded !== this.unfolded) this.idle.open = this.unfolded = unfolded;
    write(this.count, idle.length === 1 ? "1 model without requests" : `${count(idle.length)} models without requests`);
  }

  showKey(feed, rows) {
    const { models, snapshot } = feed.data;
    const all = gathered(rows, null);
    const lost = all.refused + all.lost;
    const pending = Object.values(snapshot.models).reduce((sum, one) => sum + one.pending, 0);
    const busy = this.busyShare(feed.picture);
    const pairs = [["Models", count(models.length)], ["Answered a second", rate(all.answered, all.seconds)]];
    if (lost) pairs.push(["Not answered a second", rate(lost, all.seconds)]);
    if (pending) pairs.push(["Under way", count(pending)]);
    if (busy) pairs.push(["Workers busy", share(busy, 1, 0)]);
    if (snapshot.restarts) pairs.push(["Engine restarts", count(snapshot.restarts)]);
    if (snapshot.memory) {
      const used = Object.values(snapshot.memory.models).reduce((sum, one) => sum + one.resident_bytes, 0);
      pairs.push(["Memory", `${bytes(used)} of ${bytes(snapshot.memory.budget_bytes)}`]);
    }
    this.key.show(pairs);
  }

  // Which share of their time all workers together have run, by the last pictures; 0 where they were idle in each.
  busyShare(picture) {
    if (picture && picture !== this.picture) {
      this.picture = picture;
      const running = picture.workers.filter((worker) => worker.batches.some((batch) => batch.doing === "runs"));
      this.looks.push(running.length / Math.max(1, picture.workers.length));
      if (this.looks.length > WINDOW) this.looks.shift();
    }
    return this.looks.reduce((sum, one) => sum + one, 0) / Math.max(1, this.looks.length);
  }

  // Makes the tables where other columns are wanted than there are.
  make(limited, sized) {
    if (this.kinds === `${limited} ${sized}`) return;
    this.kinds = `${limited} ${sized}`;
    const memory = limited ? [["In memory", (one) => one.memory]] : [];
    this.table = new Table([
      ["Model", (one) => one.link],
      ["State", (one) => one.state],
      ["Requests/s", (one) => one.rate],
      ["p50", (one) => one.p50],
      ["p99", (one) => one.p99],
      ["Goodput/s", (one) => one.goodput],
      ...(sized ? [["Length/s", (one) => one.lengths], ["Padding", (one) => one.padding]] : []),
      ["In time", (one) => one.inTime, (one) => (one.timely ? "" : "late")],
      ["Under way", (one) => one.pending],
      ["Answered", (one) => one.answered],
      ...memory,
    ]);
    this.rest = new Table([["Model", (one) => one.link], ["State", (one) => one.state], ["Answered", (one) => one.answered], ...memory]);
    this.place.replaceChildren(this.table.node);
    this.idle.replaceChildren(this.count, this.rest.node);
    this.note.append(sized ? " Of models whose rows differ in size, length/s counts what was answered in tokens of texts, or the product of " +
      "their sizes; padding is how much longer rows ran than they are." : "");
  }
}

// What is nothing is left empty: a table of zeros tells nobody anything.
function row(model, feed, rows, trouble) {
  const figures = feed.data.snapshot.models[model.name];
  const sum = gathered(rows, model.name);
  const of = (part) => (sum.answered && figures ? percentile(figures.latency_seconds.le, sum.latency, part) : "");
  const some = (value) => (value ? count(value) : "");
  const asked = sum.answered + sum.refused + sum.lost;
  const held = feed.data.snapshot.memory?.models[model.name];
  const state = trouble?.state ?? (model.reason === "unloaded" ? model.reason : model.state.toLowerCase());
  const kind = trouble ? (trouble.grave ? "bad" : "warn") : model.state === "READY" ? "good" : "";
  return {
    key: JSON.stringify([model.name, model.version, state, kind, figures !== undefined]),
    name: model.name,
    busy: trouble !== undefined || figures?.pending > 0 || model.name in feed.data.minute.ended,
    link: named(model, figures),
    state: element("span", { class: `state ${kind}` }, state),
    rate: asked ? rate(asked, sum.seconds) : "",
    p50: of(0.5),
    p99: of(0.99),
    goodput: asked ? rate(sum.answered, sum.seconds) : "",
    lengths: sum.lengths ? rate(sum.lengths, sum.seconds) : "",
    padding: figures?.run_lengths ? padding(figures) : "",
    inTime: asked ? share(sum.answered, asked) : "",
    timely: sum.answered >= ENOUGH * asked,
    pending: some(figures?.pending),
    answered: some(figures?.requests.answered),
    memory: held ? `${bytes(held.resident_bytes)} of ${bytes(held.bytes)}` : "",
  };
}

// The name leads to the model's own view, where it has figures to show.
function named(model, figures) {
  const kind = model.steps.length ? "query" : "model";
  const name = figures ? element("a", { href: `#/${kind}/${encodeURIComponent(model.name)}` }, model.name) : model.name;
  const tag = model.steps.length ? "query" : model.version ? `version ${model.version}` : null;
  return element("span", {}, name, tag && element("span", { class: "tag" }, tag));
}
