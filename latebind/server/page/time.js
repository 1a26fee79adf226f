// The last minutes of one model, or of all.

import { element } from "./dom.js";
import { Series } from "./series.js";

const ALL = "all models";

export class Time {
  constructor() {
    this.pictureEvery = 0;
    this.name = null;
    this.names = "";
    this.choice = element("select", { "aria-label": "Model" });
    this.choice.addEventListener("change", () => {
      this.name = this.choice.selectedIndex === 0 ? null : this.choice.value;
    });
    this.series = new Series();
    const note = "This page keeps the last five minutes while it is open. Each percentile covers five seconds.";
    this.node = element("div", {}, element("h2", {}, "The last minutes of "), element("div", { class: "cards" }, ...this.series.nodes),
      element("p", { class: "note" }, note));
    this.node.firstChild.append(this.choice);
  }

  show(feed) {
    const names = feed.data.models.map((model) => model.name);
    if (this.names !== JSON.stringify(names)) {
      this.names = JSON.stringify(names);
      if (!names.includes(this.name)) this.name = null;
      this.choice.replaceChildren(...[ALL, ...names].map((name) => element("option", { value: name }, name)));
      this.choice.selectedIndex = 1 + names.indexOf(this.name);
    }
    this.series.show(feed, this.name);
  }
}
