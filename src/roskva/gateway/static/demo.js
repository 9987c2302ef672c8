// The demo page: two clients, and a form that publishes. Each client is one of its own (tabs: false) and is kept in sessionStorage, with what
// it registered and which versions it holds: a reload goes on where the page was.

import { Client, WebStorageState } from "./roskva.js";

const APPLICATION = "demo";
const LOG_LINES_MAX = 200;
const WISHED = new Set(["registering", "registered"]);
const RUN = (sessionStorage["roskva-demo-run"] ??= crypto.getRandomValues(new Uint32Array(1))[0].toString(36));

class Pane {
  constructor(title, letter) {
    this.device = `demo-page-${letter}-${RUN}`;
    this.key = `roskva-demo-objects:${this.device}`;
    this.objects = new Map(JSON.parse(sessionStorage[this.key] ?? "[]")); // name -> {state, version, epoch, acknowledged}; versions: digits, or "unknown"
    this.server = {}; // what its last message told: summary, unsettled
    this.notified = 0;
    this.client = null; // while offline
    this.element = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    this.element.dataset.device = this.device;
    this.find("h2").textContent = title;
    document.getElementById("panes").append(this.element);
    document.getElementById("source").append(new Option(title, this.device));
    this.find("form").onsubmit = (event) => {
      event.preventDefault();
      if (this.client) this.register(this.find("input").value);
    };
    this.find(".toggle").onclick = () => (this.client ? this.goOffline() : this.goOnline());
    this.goOnline();
  }

  goOnline() {
    const state = new WebStorageState(`roskva-demo-state:${this.device}`, sessionStorage);
    const client = new Client("", { application: APPLICATION, device: this.device, tabs: false, state, ...this.noting() });
    this.client = client;
    for (const type of ["connected", "disconnected", "insync", "outofsync"]) client.addEventListener(type, () => this.draw());
    client.addEventListener("registered", ({ detail }) => this.set(detail.name, { state: "registered" }));
    client.addEventListener("unregistered", ({ detail: { name } }) =>
      this.set(name, client.registrations().includes(name) ? { state: "registering" } : null));
    client.addEventListener("failed", ({ detail }) => detail.transient || this.set(detail.name, { state: detail.code }));
    client.addEventListener("error", ({ detail }) => this.note("bad", detail.error.message));
    client.addEventListener("stopped", ({ detail }) => {
      this.note("bad", detail.error.message);
      if (this.client === client) this.goOffline();
    });
    this.attempt(client.start());
    for (const [name, { state }] of this.objects) WISHED.has(state) ? this.register(name) : this.objects.delete(name);
    this.draw();
  }

  // As when the page is closed: the service keeps the registrations, and what it owes this client.
  async goOffline() {
    const { client } = this;
    this.client = null;
    this.draw();
    this.find(".toggle").disabled = true; // of two clients with one state the service would stop one
    await client.close();
    this.find(".toggle").disabled = false;
  }

  attempt(promise) { promise.catch((problem) => this.note("bad", problem.message)); }

  // What is held already need not be told.
  register(id) {
    const { version, epoch } = this.objects.get(id) ?? {};
    const held = version === undefined || version === "unknown" ? {} : { version: BigInt(version), epoch };
    const { client } = this;
    this.attempt(client.register(id, this.told, held).then(() => {
      // By the names that the client has for them.
      for (const name of client.registrations()) if (this.objects.get(name)?.state !== "registered") this.set(name, { state: "registering" });
    }));
  }

  unregister(name) {
    this.set(name, { state: "unregistering" });
    this.attempt(this.client.unregister(name));
  }

  // Here an application would fetch the object. This one only shows the version; when this has returned, the client acknowledges it.
  told = ({ name, version, epoch }) => {
    this.notified++;
    this.set(name, { version: version === null ? "unknown" : String(version), epoch, fresh: Date.now() });
  };

  set(name, change) {
    if (change) this.objects.set(name, { ...this.objects.get(name), ...change });
    else this.objects.delete(name);
    sessionStorage[this.key] = JSON.stringify([...this.objects]);
    this.draw();
  }

  // The browser's WebSocket, and its fetch, by which long polls are made where there is none: but what is said goes into the log, too.
  noting() {
    const pane = this;
    const noted = (direction, lines = "") => lines.split("\n").forEach((line) => line && pane.heard(direction, line));
    return {
      WebSocket: globalThis.WebSocket && class extends WebSocket {
        constructor(url) {
          super(url);
          this.addEventListener("message", ({ data }) => noted("in", data));
        }

        send(text) {
          super.send(text);
          noted("out", text);
        }
      },
      async fetch(url, request) {
        const answer = await fetch(url, request);
        if (answer.ok) noted("out", request.body);
        if (answer.ok && !request.method) noted("in", await answer.clone().text()); // a GET: a poll
        return answer;
      },
    };
  }

  heard(direction, text) {
    // Token, summary and time are in every message: shown is what makes this one different.
    const { v, token, summary, time_ms, config, ...rest } = JSON.parse(text);
    if (direction === "in" && summary) this.server = { summary, unsettled: rest.unsettled };
    if (direction === "out") this.acknowledged(rest.acks ?? []);
    const shown = Object.keys(rest).length ? JSON.stringify(rest) : "summary only";
    const short = shown.replace(/"(token|prior)":"([^"]{6})[^"]*"/g, '"$1":"$2…"');
    this.note(rest.error || rest.start_anew ? "bad" : direction, (direction === "out" ? "→ " : "← ") + short, text);
    this.draw();
  }

  // What the client has sent: by then what it was told is shown already.
  acknowledged(acks) {
    for (const { object, version } of acks) if (this.objects.has(object)) this.set(object, { acknowledged: version ?? "unknown" });
  }

  note(kind, text, whole = text) {
    const log = this.find(".log");
    const line = document.createElement("li");
    line.className = kind;
    line.textContent = text;
    line.title = whole;
    log.prepend(line);
    while (log.childElementCount > LOG_LINES_MAX) log.lastElementChild.remove();
  }

  find(selector) { return this.element.querySelector(selector); }

  draw() {
    const { client, server } = this;
    this.light(".connected", client?.connected, "online", client ? "connecting" : "offline");
    this.light(".in-sync", client?.inSync, "in sync", "not in sync");
    this.find(".toggle").textContent = client ? "Go offline" : "Go online";
    this.find(".register [type=submit]").disabled = !client;
    this.find(".numbers").textContent =
      `${client?.registrations().length ?? 0} registered here, ${server.summary?.count ?? 0} at the server, ${server.unsettled ?? 0} unsettled, ` +
      `${this.notified} notifications`;
    // Only when something changed: a button that is replaced while it is pressed would lose the click.
    const objects = [...this.objects].sort(([one], [other]) => (one < other ? -1 : 1));
    const shown = JSON.stringify([objects, !client]);
    if (shown === this.shown) return;
    this.shown = shown;
    this.find("tbody").replaceChildren(...objects.map(([name, known]) => this.row(name, known)));
  }

  light(selector, on = false, yes, no) {
    const light = this.find(selector);
    light.classList.toggle("on", on);
    light.textContent = on ? yes : no;
  }

  row(name, { state, version = "–", acknowledged = "–", fresh = 0 }) {
    const row = document.createElement("tr");
    row.dataset.object = name;
    row.classList.toggle("fresh", Date.now() - fresh < 1500);
    for (const text of [name, state, version, acknowledged]) row.insertCell().textContent = text;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Unregister";
    button.hidden = !this.client || !WISHED.has(state);
    button.onclick = () => this.unregister(name);
    row.insertCell().append(button);
    return row;
  }
}

async function publish(event) {
  event.preventDefault();
  const output = document.getElementById("published");
  const [object, version, source] = ["object", "version", "source"].map((id) => document.getElementById(id).value);
  const body = JSON.stringify({ application: APPLICATION, updates: [source ? { object, version, source } : { object, version }] });
  const began = performance.now();
  try {
    const answer = await fetch("/v1/publish", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    const { results, error } = await answer.json();
    const problem = error ?? results[0].error;
    if (problem) throw new Error(problem.message);
    output.className = "";
    output.textContent = `${object} ${version} is durable after ${Math.round(performance.now() - began)} ms`;
    document.getElementById("version").value = (BigInt(version) + 1n).toString();
  } catch (problem) {
    output.className = "bad";
    output.textContent = problem.message;
  }
}

// What anybody may ask: the status with its numbers is for operators.
async function showReadiness() {
  const show = (text) => { document.getElementById("service").textContent = text; };
  try {
    const { ready, reasons } = await (await fetch("/readyz")).json();
    show(ready ? "ready" : `not ready: ${reasons.join("; ")}`);
  } catch {
    show("the gateway does not answer");
  }
}

document.getElementById("publish").onsubmit = publish;
document.getElementById("version").value = String(Math.floor(Date.now() / 1000)); // larger than those of an earlier visit
window.demo = { panes: [new Pane("Client A", "a"), new Pane("Client B", "b")] }; // to play with in the browser's console
setInterval(showReadiness, 1000);
showReadiness();
