// One request from admission to answer: what it waited for, which stages it ran, what was looked up, loaded and replied.

import { Table, element, write } from "./dom.js";
import { count, milliseconds } from "./figures.js";

const MOST_ROWS = 8; // of a call that are drawn
const MOST_CALLS = 25; // that are listed
const ENDS = { // an error by its name, in the words of the other views
  Refused: "refused", Loading: "refused, model loads", Expired: "late", Failed: "failed", Unavailable: "failed, no engine", StepFailed: "failed",
};
const USUAL = { runs: 1, joined: 0 }; // what is not worth telling

export class Requests {
  constructor(chosen) {
    this.pictureEvery = 0;
    this.tracesEvery = 2000;
    this.chosen = chosen; // null: the newest there is when it is first looked for
    this.drawn = "";
    this.title = element("h2", {}, "One request explained");
    this.place = element("div");
    this.table = new Table([
      ["Request", (call) => call.link],
      ["Model", (call) => call.model],
      ["Began", (call) => new Date(call.began * 1e3).toLocaleTimeString([], { hour12: false })],
      ["Took", (call) => milliseconds(call.seconds)],
      ["Ended", (call) => call.ended],
      ["Rows", (call) => `${count(call.rows.length)}${sizes(call)}`],
    ]);
    this.list = element("section", { class: "card" }, this.table.node);
    this.node = element("div", {}, this.title, this.place, element("h2", {}, "The last that were followed"), this.list);
  }

  show(feed) {
    const calls = feed.traces;
    if (calls === null) return;
    if (calls.length === 0) {
      const advice = "No call has been followed yet. Start the server with --trace-rate 0.01 to follow one call in a hundred, or send a call with a traceparent header whose sampled flag is set.";
      this.place.replaceChildren(element("p", { class: "note" }, advice));
    }
    this.table.show(calls.slice(0, MOST_CALLS).map((call) => ({ ...call, key: keyOf(call), link: linked(call), ended: ended(call) })));
    if (calls.length) this.chosen ??= keyOf(calls[0]);
    const call = calls.find((one) => keyOf(one) === this.chosen);
    if (call === undefined || keyOf(call) === this.drawn) return; // what is drawn stays, though it be forgotten
    this.drawn = keyOf(call);
    write(this.title, `Request ${call.id} to ${call.model}${sizes(call)}`);
    this.place.replaceChildren(...call.rows.slice(0, MOST_ROWS).map((row) => explained(call, row)),
      ...(call.rows.length ? [] : [element("p", { class: "note" }, `It did not come to the engine: ${ENDS[call.outcome] ?? call.outcome}.`)]));
  }
}

function keyOf(call) {
  return `${call.id} ${call.began}`;
}

// How large its rows are, where rows of its model differ in size.
function sizes(call) {
  const named = Object.entries(call.dims).map(([name, size]) => `${name}=${size}`);
  return named.length ? ` of ${named.join(", ")}` : "";
}

function ended(call) {
  const words = ENDS[call.outcome] ?? call.outcome;
  return element("span", { class: words === "answered" ? null : "late" }, words);
}

function linked(call) {
  return element("a", { href: `#/requests/${encodeURIComponent(keyOf(call))}` }, call.id);
}

function explained(call, row) {
  const whole = Math.max(call.seconds, row.ended);
  const bars = [
    fallen("receive", "frontend", 0, row.arrived, whole, ""),
    ...row.spans.map((span) => fallen(named(span), span.what, span.start, span.end, whole, details(span))),
    fallen("reply", "frontend", row.ended, call.seconds, whole, ""),
  ];
  const spare = row.slack === null ? "" : ` On arrival it was expected to have ${milliseconds(row.slack)} to spare.`;
  const steps = row.spans.some((span) => span.step); // a query leaves no network: its steps do, and say so
  const left = row.left_at >= 0 && !steps ? `, left at stage ${row.left_at}` : "";
  const dropped = row.dropped ? ` ${count(row.dropped)} more spans were not kept.` : "";
  const text = `${milliseconds(row.ended - row.arrived)} in the engine, ${row.outcome.replace("_", " ")}${left}; ` +
    `due ${milliseconds(row.deadline)} after it began.${spare}${dropped}`;
  return element("section", { class: "card" }, element("div", { class: "fall" }, ...bars), element("p", { class: "note" }, text));
}

function named(span) {
  const what = span.what === "stage" ? `stage ${span.stage}` : span.what === "lookup" ? `lookup behind ${span.stage}` : span.what;
  return span.step ? `${span.step}: ${what}` : what;
}

// What is shown of a span beside its time.
function details(span) {
  const { what, step, start, end, stage, ...facts } = span;
  const worth = Object.entries(facts).filter(([name, value]) => USUAL[name] !== value);
  return worth.map(([name, value]) => `${name} ${name === "budget" ? milliseconds(value) : value}`).join(", ");
}

function fallen(name, what, start, end, whole, facts) {
  const bar = element("i", { class: what });
  bar.style.left = `${(100 * Math.max(0, start)) / whole}%`;
  bar.style.width = `${(100 * Math.max(0, end - start)) / whole}%`;
  return element("div", { title: facts }, element("span", {}, name, facts ? element("small", { class: "soft" }, ` ${facts}`) : null),
    element("div", { class: "bar" }, bar), element("span", {}, milliseconds(Math.max(0, end - start))));
}
