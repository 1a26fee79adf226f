// What is worked out of counts, and how numbers are written. Percentiles are those of Prometheus' histogram_quantile.

export const NOTHING = "–";

// What became of the requests of a model, or of all where `name` is null, in these rows.
export function gathered(rows, name) {
  const sum = { seconds: 0, answered: 0, refused: 0, lost: 0, pending: 0, latency: [], lengths: 0 };
  for (const row of rows) {
    sum.seconds += row.seconds;
    sum.pending = 0;
    const changes = name === null ? Object.values(row.models) : [row.models[name]];
    for (const change of changes) {
      if (change === undefined) continue;
      sum.answered += change.answered;
      sum.refused += change.refused;
      sum.lost += change.lost;
      sum.pending += change.pending;
      sum.lengths += change.lengths ?? 0;
      change.latency.forEach((count, place) => {
        sum.latency[place] = (sum.latency[place] ?? 0) + count;
      });
    }
  }
  return sum;
}

// The rows of the last so many seconds.
export function lately(rows, seconds) {
  if (rows.length === 0) return [];
  const from = rows.at(-1).at - seconds;
  return rows.filter((row) => row.at > from);
}

// The value in seconds that a share of all is at most at; null where there are none, Infinity beyond the last bound.
export function quantile(bounds, counts, share) {
  const all = counts.reduce((sum, count) => sum + count, 0);
  if (all === 0) return null;
  let left = share * all;
  for (let place = 0; place < bounds.length; place += 1) {
    if (left <= counts[place] && counts[place] > 0) {
      const below = place === 0 ? 0 : bounds[place - 1];
      return below + (bounds[place] - below) * (left / counts[place]);
    }
    left -= counts[place];
  }
  return Infinity;
}

// The same as a text: beyond the last bound nobody knows more than that.
export function percentile(bounds, counts, share) {
  const value = quantile(bounds, counts, share);
  return value === Infinity ? `>${bounds.at(-1)} s` : milliseconds(value);
}

export function milliseconds(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return NOTHING;
  const value = seconds * 1e3;
  if (value >= 1000) return `${(value / 1e3).toFixed(value < 9995 ? 2 : 1)} s`;
  return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ms`;
}

export function count(value) {
  return value.toLocaleString("en");
}

export function rate(number, seconds) {
  if (!seconds) return NOTHING;
  const value = number / seconds;
  return value >= 100 ? count(Math.round(value)) : value.toFixed(1);
}

export function share(part, whole, digits = 1) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(digits)} %` : NOTHING;
}

// How much longer the rows of a model ran than they are, since the start.
export function padding(figures) {
  return figures?.run_lengths ? (figures.padded_lengths / figures.run_lengths).toFixed(2) : NOTHING;
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${units[unit]}`;
}
