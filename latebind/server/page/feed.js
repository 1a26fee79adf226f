// Fetches figures once a second, and pictures where the view of the moment wants them; keeps the rows of the history.

const EVERY = 1000; // milliseconds
const REMEMBERED = 300; // seconds of rows
const ROWS = "latebind rows"; // kept for the tab, so that a page that is loaded again still has them
const REFUSED = ["refused_full", "refused_late", "refused_loading", "not_loaded"];
const LOST = ["expired", "failed"];
const PAST = 60; // snapshots
const TOKEN = "latebind token";

export class Feed {
  constructor(changed) {
    this.changed = changed; // is called when something new has come, or could not be had
    this.data = null;
    this.rows = JSON.parse(sessionStorage.getItem(ROWS) ?? "[]");
    this.past = []; // the last minute's snapshots: [time, models]
    this.picture = null;
    this.traces = null; // the last calls that were followed
    this.error = null;
    this.pictureEvery = 0; // milliseconds; 0: none is wanted
    this.tracesEvery = 0;
  }

  start() {
    window.addEventListener("pagehide", () => {
      sessionStorage.removeItem(ROWS);
      try {
        sessionStorage.setItem(ROWS, JSON.stringify(this.rows));
      } catch {
        // more than a tab may keep, of thousands of models: the page begins anew
      }
    });
    this.again(() => this.fetchFigures(), () => EVERY);
    this.again(() => this.fetchPicture(), () => this.pictureEvery || EVERY);
    this.again(() => this.fetchTraces(), () => this.tracesEvery || EVERY);
  }

  // Does it over and over, but not while nobody sees the page.
  async again(work, pause) {
    for (;;) {
      if (!document.hidden) {
        try {
          await work();
        } catch (error) {
          this.error = error;
          this.changed();
        }
      }
      await new Promise((resume) => setTimeout(resume, pause()));
    }
  }

  async fetchFigures() {
    const data = await fetched("data");
    const before = this.data;
    this.data = data; // first: figures that nothing can be worked out of are compared with once, not for ever
    if (before !== null && data.at > before.at && data.snapshot.age === undefined) {
      this.rows.push({ at: data.at, seconds: data.at - before.at, models: changes(data, before) });
    }
    this.rows = this.rows.filter((row) => row.at >= data.at - REMEMBERED && row.at <= data.at);
    this.past.push([performance.now(), data.snapshot.models]);
    if (this.past.length > PAST) this.past.shift();
    this.error = null;
    this.changed();
  }

  async fetchPicture() {
    if (this.pictureEvery === 0) return;
    this.picture = await fetched("picture");
    this.changed();
  }

  async fetchTraces() {
    if (this.tracesEvery === 0) return;
    this.traces = (await fetched("../v2/traces")).traces;
    this.changed();
  }

  // The model of this name with its figures, or undefined.
  model(name) {
    const model = this.data.models.find((one) => one.name === name);
    return model && { ...model, figures: this.data.snapshot.models[name], turnedAway: this.data.turned_away[name] ?? {} };
  }

  // The figures of a model about a minute ago, as far back as this page remembers.
  before(name) {
    const known = this.past.find(([, models]) => models[name] !== undefined);
    return known && known[1][name];
  }
}

// What became of requests from one look to the next, by model; of models without any, nothing.
function changes(now, before) {
  const away = (data, name) => Object.values(data.turned_away[name] ?? {}).reduce((sum, rows) => sum + rows, 0);
  const found = Object.entries(now.snapshot.models).map(([name, figures]) => {
    const found = change(figures, before.snapshot.models[name]);
    return [name, { ...found, refused: found.refused + away(now, name) - away(before, name) }];
  });
  return Object.fromEntries(found.filter(([, each]) => each.answered + each.refused + each.lost + each.pending > 0));
}

// Counts that have begun anew, as those of a new engine do, count from nothing.
function change(now, before) {
  const anew = before === undefined || before.latency_seconds.count > now.latency_seconds.count;
  const since = (outcome) => Math.max(0, now.requests[outcome] - (anew ? 0 : before.requests[outcome]));
  const all = (outcomes) => outcomes.reduce((sum, outcome) => sum + since(outcome), 0);
  const earlier = anew ? [] : before.latency_seconds.counts;
  const latency = now.latency_seconds.counts.map((number, place) => Math.max(0, number - (earlier[place] ?? 0)));
  const lengths = now.lengths === undefined ? 0 : Math.max(0, now.lengths - (anew ? 0 : before.lengths));
  return { answered: since("answered"), refused: all(REFUSED), lost: all(LOST), pending: now.pending, latency, lengths };
}

async function fetched(path) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  const reply = await fetch(path, { cache: "no-store", headers });
  const answer = await reply.json();
  if (!reply.ok) throw Object.assign(new Error(answer.error), { denied: reply.status === 401 });
  return answer;
}

// The token lasts as long as the browser's tab.
export function useToken(token) {
  sessionStorage.setItem(TOKEN, token);
}
