// Latency, goodput and who is under way over the last minutes, of one model or of all.

import { Chart, colour } from "./charts.js";
import { gathered, quantile } from "./figures.js";

const STEP = 5; // rows that a percentile is taken of: a second alone has few answers
const FEW = 6; // requests whose axis has a line for each
const TIMES = { xaxis: { type: "date", tickformat: "%H:%M:%S", tickangle: 0, nticks: 4 } };

export class Series {
  constructor() {
    this.latency = new Chart("Latency, ms", TIMES);
    this.ended = new Chart("Requests a second", TIMES);
    this.pending = new Chart("Requests under way", TIMES);
    this.nodes = [this.latency.node, this.ended.node, this.pending.node];
  }

  show(feed, name) {
    const bounds = Object.values(feed.data.snapshot.models)[0]?.latency_seconds.le ?? [];
    const at = feed.rows.map((row) => new Date(row.at * 1e3));
    const each = feed.rows.map((row) => gathered([row], name));
    const some = feed.rows.map((_, place) => gathered(feed.rows.slice(Math.max(0, place + 1 - STEP), place + 1), name));
    const line = (title, of, paint) => ({
      x: at, y: of, name: title, mode: "lines", line: { color: colour(paint), width: 2 }, connectgaps: false,
    });
    const percentile = (part) => some.map((sum) => scaled(quantile(bounds, sum.latency, part), bounds.at(-1)));
    this.latency.show([line("p50", percentile(0.5), "blue"), line("p99", percentile(0.99), "amber")]);
    const second = (what) => each.map((sum) => sum[what] / sum.seconds);
    this.ended.show([
      line("answered in time", second("answered"), "green"),
      line("refused", second("refused"), "amber"),
      line("late or failed", second("lost"), "red"),
    ]);
    const pending = each.map((sum) => sum.pending);
    this.pending.layout = Math.max(...pending) < FEW ? { ...TIMES, yaxis: { dtick: 1 } } : TIMES; // there are no half requests
    this.pending.show([line("accepted, not ended", pending, "blue")]);
  }
}

// In milliseconds, and at most the last bound.
function scaled(seconds, most) {
  return seconds === null ? null : Math.min(seconds, most) * 1e3;
}
