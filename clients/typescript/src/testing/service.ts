/**
 * `Service`: the model of the server (server.ts) with real clients, over wires that lose, delay and break when they are told to.
 *
 * The twin of src/roskva/testing/service.py, and with its names: the public surface.
 */

import { Channel } from "../channels/channel.ts";
import { Client, type ClientOptions } from "../client.ts";
import { ClientStopped, InvalidVersion, type RoskvaError } from "../core/errors.ts";
import { checkApplication, checkStated, nameFromText } from "../core/model.ts";
import { InvalidSetting, ServiceUnreachable } from "../errors.ts";
import { Session } from "../session.ts";
import * as later from "../later.ts";
import type { Change, Publisher } from "../publisher.ts";
import { MemoryState } from "../stores/memory.ts";
import { HandClock } from "./clock.ts";
import { type Hearer, type Policy, Server } from "./server.ts";

void [Session, later]; // loaded here, and not when the first client starts: the clock counts turns of the event loop

export interface ServiceOptions {
  /** Which part of the messages is lost, in either direction: 0 to 1. May be set at any time. */
  readonly loss?: number;
  /** How long a message takes. May be set at any time: then later messages overtake earlier ones. */
  readonly delayS?: number;
  /** Of the chance by which messages are lost. */
  readonly seed?: number;
  /** What the service wishes of its clients, and how it treats them (docs/protocol.md). */
  readonly config?: Partial<Policy>;
}

export type TestClientOptions = Omit<ClientOptions, "application" | "channel" | "clock" | "tabs" | "WebSocket">;

/** A real client whose clock is the service's, so that a LiveCache over it has the same. */
class TestClient extends Client {
  readonly clock: HandClock;
  readonly wire: Wire;

  constructor(wire: Wire, clock: HandClock, options: ClientOptions) {
    super("", { ...options, channel: wire, clock, tabs: false });
    this.clock = clock;
    this.wire = wire;
  }

  /** The platform takes its turns to load what a client needs: no time of the test. */
  override start(): Promise<void> {
    const started = super.start();
    this.clock.hold(started);
    return started;
  }
}

/** A client's connection. Unplugged it fails at once, as a connection does that nobody accepts. */
class Wire extends Channel implements Hearer {
  plugged = true;
  readonly #service: Carrier;

  constructor(service: Carrier) {
    super();
    this.#service = service;
  }

  override send(data: string): void {
    if (!this.plugged || !this.#service.running) throw new Error("there is no way to the service");
    this.#service.carry("service", () => {
      if (this.plugged) this.#service.server.hear(this, data);
    });
  }

  override ended(): void {
    this.#service.server.hungUp(this);
  }

  hear(data: string): void {
    this.#service.carry("client", () => {
      if (this.plugged) this.received(data);
    });
  }

  cut(): void {
    this.#service.server.hungUp(this);
    this.interrupted();
  }
}

interface Carrier {
  readonly running: boolean;
  readonly server: Server;
  carry(to: "client" | "service", arrive: () => void): void;
}

/**
 * A service inside a test.
 *
 *     const service = new Service();
 *     const client = service.client("shop");
 *     await client.register("doc:42", (told) => seen.push(told.version));
 *     service.publish("shop", "doc:42", 7);
 *     await service.settled(); // seen is [7n]
 *     service.disconnect(client);
 *     await service.advance(60);
 *     await service.close();
 *
 * What needs no time happens by itself, as soon as the test waits for anything; pauses, heartbeats and repeats happen when the test moves
 * the clock. Chance in the clients is real: do not count on the length of their pauses.
 */
export class Service {
  loss: number;
  delayS: number;
  readonly clock = new HandClock();
  readonly #carrier: { running: boolean; server: Server; carry: Carrier["carry"] };
  readonly #clients: TestClient[] = [];
  readonly #toLose = { client: 0, service: 0, any: 0 };
  readonly #random: () => number;
  #cancelTick = (): void => {};
  #closed = false;

  constructor({ loss = 0, delayS = 0, seed = 0, config = {} }: ServiceOptions = {}) {
    this.loss = loss;
    this.delayS = delayS;
    this.#random = chance(seed);
    const server = new Server(config, () => this.clock.now());
    this.#carrier = { running: true, server, carry: (to, arrive) => this.#carry(to, arrive) };
  }

  /** Ends the clients, too. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#cancelTick();
    await Promise.all(this.#clients.map((client) => client.close()));
  }

  /** Move the clock, from timer to timer. */
  async advance(seconds: number): Promise<void> {
    await this.clock.advance(seconds);
  }

  /** Move the clock to the first moment at which it is true. Throws Stuck if it is not `withinS` seconds. */
  async until(condition: () => boolean, withinS = 600): Promise<void> {
    await this.clock.until(condition, withinS);
  }

  /** What the promise answers. The clock moves as far as that needs, `withinS` seconds at most: then it throws Stuck. */
  async run<T>(promise: Promise<T>, withinS = 600): Promise<T> {
    let over = false;
    const end = (): void => void (over = true);
    promise.then(end, end);
    await this.clock.until(() => over, withinS);
    return promise;
  }

  /** Wait until nothing more happens at this moment. */
  async settled(): Promise<void> {
    await this.clock.settled();
  }

  /** What the clock shows; it began at 0. */
  get nowS(): number {
    return this.clock.now();
  }

  /** A client of this service. Its options are those of `Client`; `state` is kept in memory unless given. */
  client(application: string, options: TestClientOptions = {}): Client {
    if (this.#closed) throw new ClientStopped("The service of this test was closed.");
    const device = options.device ?? `device-${this.#clients.length + 1}`;
    const state = options.state ?? new MemoryState();
    const client = new TestClient(new Wire(this.#carrier), this.clock, { ...options, application, device, state });
    this.#clients.push(client);
    return client;
  }

  /** As a backend does. `source` is the device that made the change: it is not told. */
  publish(application: string, id: string, version: bigint | number | string, source: string | null = null): void {
    if (!this.#carrier.running) throw new ServiceUnreachable("The service of this test is stopped.");
    const exact = /^\d{1,19}$/.test(String(version)) ? BigInt(version) : -1n;
    if (exact < 0n || (typeof version === "number" && !Number.isSafeInteger(version))) throw new InvalidVersion(version);
    checkStated(exact);
    this.#carrier.server.publish(checkApplication(application), nameFromText(id), exact, source);
    this.#setTick();
  }

  /** What a backend is given in the place of a `Publisher`. */
  publisher(application: string): Pick<Publisher, "publish" | "publishMany" | "close"> {
    const publish = async (id: string, version: bigint | number | string, source?: string): Promise<void> =>
      this.publish(application, id, version, source ?? null);
    const outcome = ([id, version, source]: Change): Promise<RoskvaError | null> =>
      publish(id, version, source).then(() => null, (error: RoskvaError) => error);
    return { publish, publishMany: (changes) => Promise.all(Array.from(changes, outcome)), close: async () => {} };
  }

  /** Something changed, and the service cannot say to what: clients are told unknown. */
  loseVersion(application: string, id: string): void {
    this.#carrier.server.loseVersion(application, nameFromText(id));
    this.#setTick();
  }

  /** The application's versions begin anew, in a new epoch. */
  reset(application: string): void {
    this.#carrier.server.reset(application);
    this.#setTick();
  }

  /** The next so many messages are lost: to clients, to the service, or any. */
  lose(next: number, to: "client" | "service" | "any" = "any"): void {
    this.#toLose[to] += next;
  }

  /** Its connection breaks, and no other comes about until `reconnect`. */
  disconnect(client: Client): void {
    const wire = this.#wireOf(client);
    wire.plugged = false;
    wire.cut();
  }

  /** A connection may come about again: when the client tries next, after a pause. */
  reconnect(client: Client): void {
    this.#wireOf(client).plugged = true;
  }

  /** All connections break. No connection comes about until `start`. */
  stop(): void {
    this.#carrier.running = false;
    for (const { wire } of this.#clients) wire.cut();
  }

  start(): void {
    this.#carrier.running = true;
  }

  restart(): void {
    this.stop();
    this.start();
  }

  /** All that the service knew is gone: ids, registrations, versions. It goes on; its clients start anew when they connect again. */
  dropEverything(): void {
    this.restart();
    this.#carrier.server.dropEverything();
  }

  /** The service deletes this client, as it does with those that were not seen for long; its connection breaks. */
  collect(client: Client): void {
    this.#carrier.server.collect(client.application, client.device);
    this.#wireOf(client).cut();
  }

  /** The devices that the service has registered for it. */
  registered(application: string, id: string): string[] {
    return this.#carrier.server.devices(application, nameFromText(id));
  }

  /** What the service knows. Null: nothing was published, or what was is lost. */
  version(application: string, id: string): bigint | null {
    return this.#carrier.server.version(application, nameFromText(id));
  }

  /** How many notifications were sent, repeats included. */
  get notified(): number {
    return this.#carrier.server.notified;
  }

  /** How many notifications its clients have not acknowledged. */
  unacknowledged(application: string): number {
    return this.#carrier.server.unacknowledged(application);
  }

  #wireOf(client: Client): Wire {
    if (client instanceof TestClient && this.#clients.includes(client)) return client.wire;
    throw new InvalidSetting("This client is not one of this service.");
  }

  #carry(to: "client" | "service", arrive: () => void): void {
    if (this.#lost(to)) return;
    this.clock.after(this.delayS, () => {
      if (this.#closed || !this.#carrier.running) return;
      arrive();
      this.#setTick();
    });
  }

  #lost(to: "client" | "service"): boolean {
    for (const which of [to, "any"] as const) {
      if (this.#toLose[which] === 0) continue;
      this.#toLose[which] -= 1;
      return true;
    }
    return this.loss > 0 && this.#random() < this.loss;
  }

  /** What the server says because of time alone. */
  #setTick(): void {
    this.#cancelTick();
    const { server } = this.#carrier;
    const dueS = server.dueS();
    if (this.#closed || dueS === Infinity) return;
    this.#cancelTick = this.clock.after(Math.max(0.001, dueS - this.clock.now()), () => {
      if (this.#carrier.running) server.tick();
      this.#setTick();
    });
  }
}

/** Numbers from 0 to 1 that depend on the seed alone (mulberry32). */
function chance(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
