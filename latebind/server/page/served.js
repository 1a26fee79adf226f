// What is served by a name, a model or a query: how its page begins, with title, troubles and key figures.

import { KeyFigures, element, write } from "./dom.js";
import { count, gathered, lately, percentile, rate } from "./figures.js";
import { Troubles } from "./troubles.js";

const WINDOW = 10;
const ENDINGS = "Refused: told at once, for the reason that is named. Late: accepted, but not answered by its deadline. " +
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

export class Served {
  constructor(name) {
    this.pictureEvery = 500;
    this.name = name;
    this.title = element("h2", {}, name);
    this.troubles = new Troubles(name);
    this.key = new KeyFigures();
    this.endings = element("p", { class: "note" }, ENDINGS);
  }

  place(...cards) {
    this.node = element("div", {}, this.title, this.troubles.node, this.key.node, this.endings, element("div", { class: "cards" }, ...cards));
  }

  // The model with its figures; undefined, which the title says, where it has none: it went, or came after they were taken.
  find(feed) {
    const model = feed.model(this.name);
    if (model?.figures === undefined) {
      write(this.title, `${this.name} is not served`);
      return undefined;
    }
    write(this.title, model.steps.length ? model.name : `${model.name}, version ${model.version}`);
    return model;
  }

  // `more` makes further key figures of what was summed up over the last seconds.
  showKey(feed, { figures, turnedAway }, more = () => []) {
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
      ...more(sum),
    ]);
  }
}

// Key figures of the requests that were not answered, by kind; of kinds that there are.
function unanswered(ends) {
  return Object.entries(KINDS).filter(([kind]) => ends[kind]).map(([kind, name]) => [name, count(ends[kind])]);
}
