// Charts by plotly, in the colours of the page. Without plotly, their place says what to install.

import { element } from "./dom.js";

let loading = null;

function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = element("script", { src: "plotly.js" });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", reject);
    document.head.append(script);
  });
  return loading;
}

export class Chart {
  // `layout` is plotly's, besides colours and margins.
  constructor(title, layout = {}) {
    this.layout = layout;
    this.place = element("div", { class: "plot", role: "img", "aria-label": title });
    this.node = element("section", { class: "card" }, element("h3", {}, title), this.place);
    this.drawing = false;
  }

  async show(traces) {
    if (this.drawing) return; // the next second comes soon
    this.drawing = true;
    try {
      const drawer = await plotly();
      if (this.place.isConnected) {
        await drawer.react(this.place, traces, dressed(this.layout), { displayModeBar: false, responsive: true });
      }
    } catch {
      const advice = "Charts need plotly: pip install 'latebind[report]' where the server runs, then load this page again.";
      this.place.replaceChildren(element("p", { class: "note" }, advice));
    } finally {
      this.drawing = false;
    }
  }
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function dressed(layout) {
  const axis = { gridcolor: colour("line"), zeroline: false, linecolor: colour("line"), automargin: true, fixedrange: true };
  return {
    margin: { l: 44, r: 8, t: 8, b: 34 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("soft"), size: 12, family: "system-ui, sans-serif" },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("card"), font: { color: colour("ink") } },
    ...layout,
    xaxis: { ...axis, ...layout.xaxis },
    yaxis: { ...axis, rangemode: "tozero", ...layout.yaxis },
  };
}
