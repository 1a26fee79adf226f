// The batch table of each worker, the busiest first: which sub-batches it has begun, where they are, who is in them;
// and who waits.

import { Table, element, write } from "./dom.js";
import { NOTHING, count, milliseconds } from "./figures.js";

const LOOKS = 25; // that say how busy a worker is: five seconds
const STEPS = 5; // of busy workers that are told apart, so that cards keep their places

export class Workers {
  constructor() {
    this.pictureEvery = 200;
    this.picture = null; // the one that was counted last
    this.looks = []; // of the last pictures, for each worker whether it ran
    this.cards = element("div", { class: "cards" });
    this.resting = element("p", { class: "note" });
    this.queues = new Table([
      ["Model", (row) => row.name],
      ["Waiting to begin", (row) => row.waiting],
      ["Waiting for memory", (row) => row.held],
      ["Longest wait", (row) => row.oldest],
      ["Arrivals/s", (row) => row.rate],
    ]);
    this.nobody = element("p", { class: "note" }, "Nobody waits, and no model has been asked lately.");
    const legend = "Each square is a request: amber if others were let past it, red if it is past its deadline, otherwise blue. Squares in one frame run together.";
    this.node = element("div", {}, element("h2", {}, "Workers"), this.cards, this.resting, element("p", { class: "note" }, legend),
      element("h2", {}, "Who waits"), element("section", { class: "card" }, this.queues.node, this.nobody));
  }

  show(feed) {
    const picture = feed.picture;
    if (!picture) return;
    if (picture !== this.picture) {
      this.picture = picture;
      this.looks.push(picture.workers.map((worker) => worker.batches.some((batch) => batch.doing === "runs")));
      if (this.looks.length > LOOKS) this.looks.shift();
    }
    const workers = picture.workers.map((worker, number) => {
      const busy = this.looks.filter((look) => look[number]).length / this.looks.length;
      return { worker, number, busy };
    });
    const busiest = workers.filter(({ worker, busy }) => busy > 0 || worker.batches.length > 0);
    busiest.sort((one, other) => Math.round(STEPS * other.busy) - Math.round(STEPS * one.busy) || one.number - other.number);
    this.cards.replaceChildren(...busiest.map(table));
    write(this.resting, rests(workers.filter((one) => !busiest.includes(one)).map((one) => one.number)));
    const lanes = Object.entries(picture.models).filter(([, lane]) => lane.waiting + lane.held > 0 || lane.rate >= 0.05);
    lanes.sort(([one, { oldest: a }], [other, { oldest: b }]) => Math.round(b) - Math.round(a) || one.localeCompare(other));
    this.queues.show(lanes.map(([name, lane]) => ({
      key: name,
      name,
      waiting: lane.waiting ? count(lane.waiting) : "",
      held: lane.held ? count(lane.held) : "",
      oldest: lane.waiting + lane.held ? milliseconds(lane.oldest) : "",
      rate: lane.rate < 1e6 ? lane.rate.toFixed(1) : NOTHING,
    })));
    this.queues.node.hidden = lanes.length === 0;
    this.nobody.hidden = lanes.length > 0;
  }
}

// Says which workers do nothing, in one line.
function rests(numbers) {
  if (numbers.length === 0) return "";
  const which = numbers.length === 1 ? `Worker ${numbers[0]} is` : `Workers ${numbers.slice(0, -1).join(", ")} and ${numbers.at(-1)} are`;
  return `${which} idle.`;
}

function table({ worker, number, busy }) {
  const limit = worker.largest ? `, batches of ${worker.largest}` : "";
  const runs = worker.batches.some((batch) => batch.doing === "runs");
  const doing = `busy ${Math.round(100 * busy)} %${runs ? `, has run for ${milliseconds(worker.seconds)}` : ""}`;
  return element("section", { class: "card" },
    element("h3", {}, `Worker ${number}${limit} `, element("span", { class: "soft" }, doing)),
    ...(worker.batches.length ? worker.batches.map(drawn) : [element("p", { class: "note" }, "It has no batch at the moment.")]));
}

function drawn(batch) {
  const steps = Array.from({ length: batch.stages }, (_, stage) =>
    element("i", { class: stage < batch.stage ? "done" : stage === batch.stage ? "here" : null }));
  const more = batch.size - batch.members.length;
  return element("div", { class: `batch ${batch.doing}` },
    element("p", {}, element("b", {}, batch.model),
      element("span", { class: "soft" }, `${word(batch)} stage ${batch.stage} of ${batch.stages}, ${count(batch.size)} together`)),
    element("div", { class: "track", role: "presentation" }, ...steps),
    element("div", { class: "members" }, ...batch.members.map(square), more > 0 ? element("span", { class: "soft" }, `and ${more}`) : null));
}

function word(batch) {
  return { runs: "runs", rests: "rests before", aside: "waits for" }[batch.doing];
}

function square(member) {
  const kind = member.left < 0 ? "over" : member.preempted ? "past" : null;
  const left = member.left < 0 ? `${milliseconds(-member.left)} late` : `${milliseconds(member.left)} left`;
  return element("i", { class: kind, title: `request ${member.request}: ${milliseconds(member.age)} old, ${left}` });
}
