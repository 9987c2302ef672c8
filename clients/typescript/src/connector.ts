/** Makes a client's connections, one after the other, as the choice says (choice.ts); as src/roskva/client/channels/connector.py. */

import type { Channel } from "./channels/channel.ts";
import { type Link, NotConnected, type Received } from "./channels/link.ts";
import { type SocketClass, WebSocketLink } from "./channels/websocket.ts";
import type { Attempt, Choice, Failure, Kind } from "./choice.ts";
import type { Clock } from "./clock.ts";
import { LOAD_S } from "./settings.ts";

export type ChannelChoice = "auto" | "websocket" | "long-poll" | Channel;

/** Again and again: `connect`, `carry`. */
export class Connector {
  /** Where the client is connected, or tries to. */
  url: string;
  kind: Kind;
  readonly #clock: Clock;
  readonly #urls: readonly string[];
  readonly #channel: ChannelChoice;
  readonly #kind: Kind | "auto";
  readonly #socket: SocketClass | undefined;
  readonly #over = new AbortController();
  #choice: Choice | null = null; // until it is loaded, the first attempt is repeated
  #attempt: Attempt;
  #returned: Link | null = null; // made beside long polls, to take their place

  constructor(urls: readonly string[], channel: ChannelChoice, socket: SocketClass | undefined, clock: Clock) {
    this.#urls = urls;
    this.#channel = channel;
    this.#socket = socket;
    this.#clock = clock;
    this.#kind = typeof channel !== "string" ? "carried" : channel === "auto" && !socket ? "long-poll" : channel;
    this.kind = this.#kind === "auto" ? "websocket" : this.#kind;
    this.#attempt = { url: 0, kind: this.kind };
    this.url = urls[0] as string;
  }

  /** Load what is needed when a connection fails. Null: it cannot be loaded now. */
  async prepare(): Promise<typeof import("./later.ts") | null> {
    const later = await import("./later.ts").catch(() => null);
    if (later) this.#choice ??= new later.Choice(this.#urls.length, this.#kind, Math.random);
    return later;
  }

  /** What became of an attempt. Whoever cannot load what to learn from it tries the same again. */
  async #learn(from: (choice: Choice, nowS: number) => void): Promise<void> {
    const nowS = this.#clock.now();
    if (!this.#choice) await Promise.race([this.prepare(), new Promise<void>((late) => void this.#clock.after(LOAD_S, late))]);
    if (this.#choice) from(this.#choice, nowS);
  }

  /** The next connection is made already. */
  get hasNext(): boolean {
    return !!this.#returned;
  }

  /** Whatever is being made is of no use any more. */
  close(): void {
    this.#over.abort();
    this.#returned?.shut();
  }

  /** The next connection. NotConnected says why there is none; then it is another's turn. */
  async connect(): Promise<Link> {
    const returned = this.#returned;
    this.#returned = null;
    this.#attempt = (returned ? this.#choice?.returned() : this.#choice?.attempt(this.#clock.now())) ?? this.#attempt;
    this.url = this.#urls[this.#attempt.url] as string;
    this.kind = this.#attempt.kind;
    try {
      return returned ?? (await this.#make());
    } catch (error) {
      await this.#learn((choice, nowS) => choice.failed(nowS, this.#attempt, whyOf(error)));
      throw error;
    }
  }

  async #make(): Promise<Link> {
    if (typeof this.#channel !== "string") return this.#channel.link();
    if (this.kind !== "long-poll") return this.#webSocket();
    const later = await this.prepare();
    if (!later) throw new NotConnected("Long polls cannot be loaded.", "unreachable");
    return later.LongPollLink.connect(this.url, this.#over.signal);
  }

  #webSocket(): Promise<Link> {
    return WebSocketLink.connect(this.url, this.#socket as SocketClass, this.#over.signal);
  }

  /** Run the connection to its end; answers why it ended. */
  async carry(link: Link, received: Received): Promise<string> {
    const beganS = this.#clock.now();
    const choice = this.#choice; // long polls came with it
    const stop = choice && link.giveWay(this.#clock, choice, () => this.#webSocket(), (next) => (this.#returned = next));
    const why = await link.run(received);
    stop?.();
    if (!this.#returned) await this.#learn((choice, nowS) => choice.ended(nowS, this.#attempt, nowS - beganS, link.heard, link.cut));
    return why;
  }
}

export const whyOf = (error: unknown): Failure => (error as Partial<NotConnected>).why ?? "broken";
