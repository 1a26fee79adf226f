// Fetches figures once a second, and pictures where the view of the moment wants them; keeps the rows of the history.

const EVERY = 1000; // milliseconds
const REMEMBERED = 300; // seconds of rows
const PAST = 60; // snapshots
const TOKEN = "latebind token";

export class Feed {
  constructor(told) {
    this.told = told; // is called when something new has come, or could not be had
    this.data = null;
    this.rows = [];
    this.past = []; // the last minute's snapshots: [time, models]
    this.picture = null;
    this.traces = null; // the last calls that were followed
    this.error = null;
    this.pictureEvery = 0; // milliseconds; 0: none is wanted
    this.tracesEvery = 0;
  }

  start() {
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
          this.told();
        }
      }
      await new Promise((resume) => setTimeout(resume, pause()));
    }
  }

  async fetchFigures() {
    const known = this.rows.length ? this.rows.at(-1).number : 0;
    const data = await fetched(`data/${known}`);
    if (data.rows.length && data.rows[0].number <= known) this.rows = []; // the server has begun anew
    this.rows.push(...data.rows);
    const from = this.rows.length ? this.rows.at(-1).at - REMEMBERED : 0;
    this.rows = this.rows.filter((row) => row.at >= from);
    this.past.push([performance.now(), data.snapshot.models]);
    if (this.past.length > PAST) this.past.shift();
    this.data = data;
    this.error = null;
    this.told();
  }

  async fetchPicture() {
    if (this.pictureEvery === 0) return;
    this.picture = await fetched("picture");
    this.told();
  }

  async fetchTraces() {
    if (this.tracesEvery === 0) return;
    this.traces = (await fetched("../v2/traces")).traces;
    this.told();
  }

  // The model of this name with its figures, or undefined.
  model(name) {
    const model = this.data.models.find((one) => one.name === name);
    return model && { ...model, figures: this.data.snapshot.models[name] };
  }

  // The figures of a model about a minute ago, as far back as this page remembers.
  before(name) {
    const known = this.past.find(([, models]) => models[name] !== undefined);
    return known && known[1][name];
  }
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
