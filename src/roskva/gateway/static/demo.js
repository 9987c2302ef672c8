// The demo page: two clients that speak Roskva's protocol by hand (docs/protocol.md), and a form that publishes.
// It shows the protocol in as few lines as possible. It keeps no state over a reload, so each load is two new clients.

const APPLICATION = "demo";
const LOG_LINES_MAX = 200;
const MODULUS = 1n << 128n;

// The first 128 bits of SHA-256 of each name, added modulo 2^128: the digest of a set of registrations.
// Synchronous, since crypto.subtle is missing on pages that came over plain HTTP from another machine.
function sha256(bytes) {
  const primes = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((p) => n % p)) primes.push(n);
  const fraction = (x) => ((x - Math.floor(x)) * 2 ** 32) | 0;
  const k = primes.map((p) => fraction(Math.cbrt(p)));
  const h = primes.slice(0, 8).map((p) => fraction(Math.sqrt(p)));
  const padded = new Uint8Array(((bytes.length + 72) >> 6) << 6);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 4, bytes.length * 8);
  const rotate = (x, n) => (x >>> n) | (x << (32 - n));
  const w = new Int32Array(64);
  for (let block = 0; block < padded.length; block += 64) {
    for (let i = 0; i < 64; i++) {
      if (i < 16) { w[i] = view.getInt32(block + 4 * i); continue; }
      const s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ (w[i - 15] >>> 3);
      const s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ (w[i - 2] >>> 10);
      w[i] = (w[i - 16] + s0 + w[i - 7] + s1) | 0;
    }
    let [a, b, c, d, e, f, g, last] = h;
    for (let i = 0; i < 64; i++) {
      const s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
      const t1 = (last + s1 + ((e & f) ^ (~e & g)) + k[i] + w[i]) | 0;
      const s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [last, g, f, e, d, c, b, a] = [g, f, e, (d + t1) | 0, c, b, a, (t1 + t2) | 0];
    }
    [a, b, c, d, e, f, g, last].forEach((value, i) => { h[i] = (h[i] + value) | 0; });
  }
  return h.map((value) => (value >>> 0).toString(16).padStart(8, "0")).join("");
}

const hashes = new Map();
function hashOf(name) {
  if (!hashes.has(name)) hashes.set(name, BigInt("0x" + sha256(new TextEncoder().encode(name)).slice(0, 32)));
  return hashes.get(name);
}

function summaryOf(names) {
  let total = 0n;
  let count = 0;
  for (const name of names) { total = (total + hashOf(name)) % MODULUS; count++; }
  return { count, digest: total.toString(16).padStart(32, "0") };
}

const sameSummary = (one, other) => Boolean(one && other) && (one.count ?? 0) === (other.count ?? 0) && one.digest === other.digest;
const random = () => crypto.getRandomValues(new Uint32Array(2)).join("");

class Client {
  constructor(device, changed, heard) {
    this.device = device;
    this.changed = changed; // called after every change, to draw
    this.heard = heard; // (direction, text) for the log
    this.desired = new Set();
    this.objects = new Map(); // name -> {state, version, acknowledged, fresh}
    this.token = "";
    this.prior = "";
    this.nonce = "";
    this.op = 0;
    this.wanted = true; // the person wants it online
    this.socket = null;
    this.pause_s = 0.5;
    this.config = { keepalive_s: 50, retry_min_s: 1 };
    this.server = {}; // what the last message told: summary, unsettled
    this.spoken_ms = 0;
    this.inFlight = new Map(); // name -> "register" or "unregister", until its status comes
    this.duplicates = 0;
    this.notified = 0;
    setInterval(() => this.tick(), 1000);
    this.connect();
  }

  get connected() { return this.socket !== null && this.socket.readyState === WebSocket.OPEN && this.token !== ""; }

  get inSync() {
    const recent = Date.now() - this.spoken_ms < 2000 * this.config.keepalive_s;
    return this.connected && recent && this.inFlight.size === 0 && !this.server.unsettled &&
      sameSummary(this.server.summary, summaryOf(this.desired));
  }

  connect() {
    if (!this.wanted || this.socket) return;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/v1/channel`);
    this.socket = socket;
    socket.onopen = () => {
      this.pause_s = 0.5;
      if (this.token) this.resume(); else this.handshake();
    };
    socket.onmessage = (event) => this.receive(JSON.parse(event.data), event.data);
    socket.onclose = () => {
      if (this.socket === socket) this.socket = null;
      this.changed();
      if (this.wanted) setTimeout(() => this.connect(), 1000 * this.pause_s * (0.5 + Math.random()));
      this.pause_s = Math.min(this.pause_s * 2, 30);
    };
    this.changed();
  }

  goOffline() {
    this.wanted = false;
    if (this.socket) this.socket.close(1000);
    this.socket = null;
    this.changed();
  }

  goOnline() {
    this.wanted = true;
    this.connect();
  }

  send(message) {
    if (!this.socket || this.socket.readyState !== WebSocket.OPEN) return;
    const text = JSON.stringify({ v: 1, ...message });
    this.socket.send(text);
    this.heard("out", text);
  }

  say(message = {}) { this.send({ token: this.token, summary: summaryOf(this.desired), ...message }); }

  handshake() {
    this.nonce = random();
    const init = { nonce: this.nonce, application: APPLICATION, device: this.device };
    this.send({ init: this.prior ? { ...init, prior: this.prior } : init });
  }

  // The channel is new, the session is not: say hello, and repeat what was not answered.
  resume() {
    this.say();
    for (const [name, kind] of this.inFlight) this.operate(kind, name);
  }

  operate(kind, name) {
    this.inFlight.set(name, kind);
    if (this.connected) this.say({ [kind]: [{ op: ++this.op, object: name }] });
    this.changed();
  }

  register(name) {
    this.desired.add(name);
    const known = this.objects.get(name) ?? { version: null, acknowledged: null };
    this.objects.set(name, { ...known, state: "registering" });
    this.operate("register", name);
  }

  unregister(name) {
    this.desired.delete(name);
    this.objects.set(name, { ...this.objects.get(name), state: "unregistering" });
    this.operate("unregister", name);
  }

  receive(message, text) {
    this.heard(message.error || message.start_anew ? "bad" : "in", text);
    if (message.grant && message.grant.nonce === this.nonce) {
      this.token = this.prior = message.grant.token;
      this.op = 0;
      this.resume();
      for (const name of this.desired) if (!this.inFlight.has(name)) this.operate("register", name);
    }
    if (message.token !== this.token && !message.start_anew) return;
    if (message.start_anew) {
      if (message.token === this.token || message.start_anew.nonce === this.nonce) {
        this.prior = message.start_anew.keep ? this.prior : "";
        this.token = "";
        this.handshake();
      }
      return;
    }
    this.spoken_ms = Date.now();
    this.config = { ...this.config, ...message.config };
    if (message.summary) this.server = { summary: message.summary, unsettled: message.unsettled ?? 0 };
    for (const status of message.status ?? []) this.settle(status);
    this.notify(message.notify ?? []);
    if (message.sync_request && this.inFlight.size === 0) {
      this.say({ sync: { op: ++this.op, objects: [...this.desired].map((object) => ({ object })) } });
    }
    this.changed();
  }

  settle(status) {
    const wanted = this.desired.has(status.object);
    if (status.state === "registered" && wanted) this.objects.set(status.object, { ...this.objects.get(status.object), state: "registered" });
    if (status.state === "unregistered" && !wanted) this.objects.delete(status.object);
    if (status.state === "failed") {
      if (status.transient) return; // tick repeats it
      this.desired.delete(status.object);
      this.objects.set(status.object, { ...this.objects.get(status.object), state: status.code });
    }
    this.inFlight.delete(status.object);
  }

  // Here the application would fetch the object. This one only shows the version, and acknowledges.
  notify(notifications) {
    const acks = [];
    for (const { object, seqno, version, epoch } of notifications) {
      const known = this.objects.get(object);
      const shown = version ?? "unknown";
      if (known) {
        if (known.acknowledged === shown) this.duplicates++;
        else this.notified++;
        this.objects.set(object, { ...known, version: shown, acknowledged: shown, fresh: Date.now() });
      }
      acks.push({ object, seqno, ...(version === undefined ? {} : { version }), ...(epoch ? { epoch } : {}) });
    }
    if (acks.length) this.say({ acks });
  }

  tick() {
    if (this.socket?.readyState === WebSocket.OPEN) {
      if (!this.token) { if (++this.waited_s % 3 === 0) this.handshake(); } else {
        this.waited_s = 0;
        for (const [name, kind] of this.inFlight) if (Math.random() < 0.3) this.operate(kind, name);
      }
    }
    this.changed();
  }

  waited_s = 0;
}

class Pane {
  constructor(title, device) {
    this.element = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    this.element.dataset.device = device;
    this.find("h2").textContent = title;
    document.getElementById("panes").append(this.element);
    this.find("form").onsubmit = (event) => {
      event.preventDefault();
      this.client.register(this.find("input").value);
    };
    this.find(".toggle").onclick = () => (this.client.wanted ? this.client.goOffline() : this.client.goOnline());
    this.client = new Client(device, () => this.draw(), (direction, text) => this.note(direction, text));
    const option = document.createElement("option");
    option.value = device;
    option.textContent = title;
    document.getElementById("source").append(option);
  }

  find(selector) { return this.element.querySelector(selector); }

  draw() {
    const client = this.client;
    if (!client) return;
    this.light(".connected", client.connected, "online", client.wanted ? "connecting" : "offline");
    this.light(".in-sync", client.inSync, "in sync", "not in sync");
    this.find(".toggle").textContent = client.wanted ? "Go offline" : "Go online";
    this.drawRows([...client.objects].sort(([one], [other]) => (one < other ? -1 : 1)));
    const unsettled = client.server.unsettled ?? 0;
    this.find(".numbers").textContent =
      `${client.desired.size} registered here, ${client.server.summary?.count ?? 0} at the server, ${unsettled} unsettled, ` +
      `${client.notified} notifications, ${client.duplicates} repeated`;
  }

  // Only when something changed: a button that is replaced while it is pressed would lose the click.
  drawRows(objects) {
    const shown = JSON.stringify([objects, [...this.client.desired]]);
    if (shown === this.shown) return;
    this.shown = shown;
    this.find("tbody").replaceChildren(...objects.map(([name, known]) => this.row(name, known)));
  }

  light(selector, on, yes, no) {
    const light = this.find(selector);
    light.classList.toggle("on", on);
    light.textContent = on ? yes : no;
  }

  row(name, known) {
    const row = document.createElement("tr");
    row.dataset.object = name;
    row.classList.toggle("fresh", Date.now() - (known.fresh ?? 0) < 1500);
    for (const text of [name, known.state, known.version ?? "–", known.acknowledged ?? "–"]) row.insertCell().textContent = text;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Unregister";
    button.hidden = !this.client.desired.has(name);
    button.onclick = () => this.client.unregister(name);
    row.insertCell().append(button);
    return row;
  }

  note(direction, text) {
    const log = this.find(".log");
    const line = document.createElement("li");
    line.className = direction;
    // Token, summary and time are in every message: shown is what makes this one different.
    const { v, token, summary, time_ms, config, ...rest } = JSON.parse(text);
    const shown = Object.keys(rest).length ? JSON.stringify(rest) : "summary only";
    line.textContent = (direction === "out" ? "→ " : "← ") + shown.replace(/"(token|prior)":"([^"]{6})[^"]*"/g, '"$1":"$2…"');
    line.title = text;
    log.prepend(line);
    while (log.childElementCount > LOG_LINES_MAX) log.lastElementChild.remove();
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

async function showStatus() {
  const show = (id, text) => { document.getElementById(id).textContent = text; };
  try {
    const status = await (await fetch("/v1/status")).json();
    const { pipeline } = status;
    const age = pipeline.last_batch_age_s;
    const last = age === null || age === undefined ? "no batch yet" : `last batch ${age.toFixed(1)} s ago`;
    show("pipeline", pipeline.alive ? `running, ${last}` : "not running: updates are kept until it is back");
    const lag = Object.values(pipeline.lag ?? {}).flatMap((partitions) => Object.values(partitions)).reduce((sum, n) => sum + n, 0);
    show("lag", `${lag} records`);
    show("sessions", `${status.sessions} at ${status.members.length} gateway${status.members.length === 1 ? "" : "s"}`);
  } catch {
    show("pipeline", "the gateway does not answer");
  }
}

document.getElementById("publish").onsubmit = publish;
document.getElementById("version").value = String(Math.floor(Date.now() / 1000)); // larger than those of an earlier visit
const run = random().slice(0, 8);
const panes = [new Pane("Client A", `demo-page-a-${run}`), new Pane("Client B", `demo-page-b-${run}`)];
window.demo = { panes, sha256, summaryOf }; // to play with in the browser's console
setInterval(showStatus, 1000);
showStatus();
