// What is wrong with the server, or with one model, the worst first: what it is and what to do. Or that all is well.

import { element, write } from "./dom.js";
import { count } from "./figures.js";

const SHOWN = 8; // others are folded

export class Troubles {
  // Those of the model of this name; of the server and all of its models where `name` is null.
  constructor(name = null) {
    this.name = name;
    this.list = element("ol");
    this.folded = element("ol");
    this.more = element("summary");
    this.rest = element("details", {}, this.more, this.folded);
    this.well = element("p", { class: "well" });
    this.node = element("section", { class: "troubles", "aria-label": "What is wrong" }, this.well, this.list, this.rest);
  }

  show(feed) {
    const { troubles, minute } = feed.data;
    const mine = this.name === null ? troubles : troubles.filter((one) => one.model === this.name);
    filled(this.list, mine.slice(0, SHOWN), this.name === null);
    filled(this.folded, mine.slice(SHOWN), this.name === null);
    this.rest.hidden = mine.length <= SHOWN;
    write(this.more, `${mine.length - SHOWN} more`);
    this.well.hidden = mine.length > 0 || this.name !== null;
    write(this.well, healthy(minute));
  }
}

// The items stay from one look to the next, and so does what somebody has marked in them.
function filled(list, troubles, named) {
  while (list.children.length > troubles.length) list.lastChild.remove();
  troubles.forEach((trouble, place) => {
    if (list.children.length === place) list.append(element("li", {}, element("b"), element("p")));
    const item = list.children[place];
    item.className = trouble.grave ? "grave" : "minor";
    const what = trouble.what.replace(/(?<=\d) (?=([kMGT]?B|s)\b)/g, "\u00a0"); // a number and its unit stay together
    write(item.children[0], named && trouble.model ? `${trouble.model}: ${what}` : what);
    if (item.children[1].dataset.said === trouble.cure) return;
    item.children[1].dataset.said = trouble.cure;
    item.children[1].replaceChildren(...coded(trouble.cure));
  });
}

// A text whose words between backticks are to be typed.
function coded(text) {
  return text.split("`").map((part, place) => (place % 2 ? element("code", {}, part) : part));
}

function healthy({ seconds, ended }) {
  const all = Object.values(ended).reduce((sum, number) => sum + number, 0);
  const when = seconds < 50 ? `${Math.max(1, Math.round(seconds))} s` : "minute";
  if (all === 0) return `All is well. No requests in the last ${when}.`;
  return `All is well: ${all === 1 ? "1 request" : `${count(all)} requests`} in the last ${when}, all answered.`;
}
