// Finds the view that the address names, feeds it, and says how the server fares.

import { element, write } from "./dom.js";
import { Feed, useToken } from "./feed.js";
import { Model } from "./model.js";
import { Models } from "./models.js";
import { Query } from "./query.js";
import { Requests } from "./requests.js";
import { Time } from "./time.js";
import { Workers } from "./workers.js";

const VIEWS = [["Models", "#/"], ["Time", "#/time"], ["Workers", "#/workers"], ["Requests", "#/requests"]];

const place = document.getElementById("view");
const health = document.getElementById("health");
const links = VIEWS.map(([name, address]) => element("a", { href: address }, name));
document.getElementById("views").append(...links);

let view = null;
const feed = new Feed(tell);

function opened(address) {
  const [kind, name] = address.replace(/^#\/?/, "").split("/");
  switch (kind) {
    case "model": return new Model(decodeURIComponent(name));
    case "query": return new Query(decodeURIComponent(name));
    case "time": return new Time();
    case "workers": return new Workers();
    case "requests": return new Requests(name === undefined ? null : decodeURIComponent(name));
    default: return new Models();
  }
}

function open() {
  view = opened(location.hash);
  feed.picture = null;
  feed.pictureEvery = view.pictureEvery;
  feed.tracesEvery = view.tracesEvery ?? 0;
  place.replaceChildren(view.node);
  links.forEach((link) => {
    const here = link.getAttribute("href") === (location.hash || "#/").split("/", 2).join("/");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  document.title = `${view.name ?? links.find((link) => link.hasAttribute("aria-current"))?.textContent ?? ""} · latebind`;
  tell();
}

function tell() {
  const { data, error } = feed;
  if (error?.denied) askForToken();
  if (!error) document.getElementById("token")?.form.remove(); // a look without the token may have ended after one with it
  if (error) {
    health.className = "bad";
    write(health, `no figures: ${error.message}`);
  } else if (data) {
    const { troubles, server } = data;
    health.className = troubles.some((one) => one.grave) ? "bad" : troubles.length ? "warn" : "good";
    const found = troubles.length === 0 ? "all is well" : troubles.length === 1 ? "1 trouble" : `${troubles.length} troubles`;
    write(health, `${found}${server.ready ? "" : " · not ready"} · version ${server.version}`);
  }
  if (!data) return;
  try {
    view.show(feed);
  } catch (failure) { // a fault of this page; the next figures may be drawn
    health.className = "bad";
    write(health, `this page failed to show them: ${failure.message}`);
    console.error(failure);
  }
}

function askForToken() {
  if (document.getElementById("token") !== null) return;
  const input = element("input", { id: "token", type: "password", autocomplete: "off", required: "" });
  const form = element("form", { class: "card" }, element("label", { for: "token" }, "This server asks for a token: "), input,
    element("button", {}, "Show"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    useToken(input.value.trim());
  });
  place.prepend(form);
}

window.addEventListener("hashchange", open);
open();
feed.start();
