// The batch table of each worker: which sub-batches it has begun, where they are, who is in them; and who waits.

import { Table, element } from "./dom.js";
import { count, milliseconds } from "./figures.js";

export class Workers {
  constructor() {
    this.pictureEvery = 200;
    this.crew = element("div", { class: "cards" });
    this.queues = new Table([
      ["Model", (row) => row.name],
      ["Waiting to begin", (row) => row.waiting],
      ["Waiting for memory", (row) => row.held],
      ["Longest wait", (row) => row.oldest],
      ["Arrivals/s", (row) => row.rate],
    ]);
    const legend = "Each square is a request: amber if others were let past it, red if it is past its deadline, otherwise blue. Squares in one frame run together.";
    this.node = element("div", {}, element("h2", {}, "Workers"), this.crew, element("p", { class: "note" }, legend),
      element("h2", {}, "Who waits"), element("section", { class: "card" }, this.queues.node));
  }

  show(feed) {
    const picture = feed.picture;
    if (!picture) return;
    this.crew.replaceChildren(...picture.workers.map(table));
    this.queues.show(Object.entries(picture.models).map(([name, lane]) => ({
      key: name,
      name,
      waiting: count(lane.waiting),
      held: count(lane.held),
      oldest: lane.waiting + lane.held ? milliseconds(lane.oldest) : "–",
      rate: lane.rate < 1e6 ? lane.rate.toFixed(1) : "–",
    })));
  }
}

function table(worker, number) {
  const limit = worker.largest ? `, batches of ${worker.largest}` : "";
  const doing = worker.batches.some((batch) => batch.doing === "runs") ? `has run for ${milliseconds(worker.seconds)}` : "idle";
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
