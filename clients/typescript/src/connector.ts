/** Makes a client's connections, one after the other, as the choice says (choice.ts); as src/roskva/client/channels/connector.py. */

import type { Channel } from "./channels/channel.ts";
import type { Link, NotConnected, Received } from "./channels/link.ts";
import { type SocketClass, WebSocketLink } from "./channels/websocket.ts";
import { type Attempt, Choice, type Failure, type Kind } from "./choice.ts";
import type { Clock } from "./clock.ts";

export type ChannelChoice = "auto" | "websocket" | "long-poll" | Channel;

/** Again and again: `connect`, `carry`. */
export class Connector {
  /** Where the client is connected, or tries to. */
  url: string;
  kind: Kind;
  readonly #clock: Clock;
  readonly #urls: readonly string[];
  readonly #channel: ChannelChoice;
  readonly #socket: SocketClass | undefined;
  readonly #over = new AbortController();
  readonly #choice: Choice;
  #attempt: Attempt;
  #returned: Link | null = null; // made beside long polls, to take their place

  constructor(urls: readonly string[], channel: ChannelChoice, socket: SocketClass | undefined, clock: Clock) {
    this.#urls = urls;
    this.#channel = channel;
    this.#socket = socket;
    this.#clock = clock;
    const kind = typeof channel !== "string" ? "carried" : channel === "auto" && !socket ? "long-poll" : channel;
    this.#choice = new Choice(urls.length, kind, Math.random);
    this.#attempt = this.#choice.attempt(0);
    this.url = urls[0] as string;
    this.kind = this.#attempt.kind;
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
    this.#attempt = returned ? this.#choice.returned() : this.#choice.attempt(this.#clock.now());
    this.url = this.#urls[this.#attempt.url] as string;
    this.kind = this.#attempt.kind;
    try {
      return returned ?? (await this.#make());
    } catch (error) {
      this.#choice.failed(this.#clock.now(), this.#attempt, whyOf(error));
      throw error;
    }
  }

  async #make(): Promise<Link> {
    if (typeof this.#channel !== "string") return this.#channel.link();
    if (this.kind !== "long-poll") return this.#webSocket();
    const { LongPollLink } = await import("./channels/longpoll.ts"); // most never need it
    return LongPollLink.connect(this.url, this.#over.signal);
  }

  #webSocket(): Promise<Link> {
    return WebSocketLink.connect(this.url, this.#socket as SocketClass, this.#over.signal);
  }

  /** Run the connection to its end; answers why it ended. */
  async carry(link: Link, received: Received): Promise<string> {
    const beganS = this.#clock.now();
    const stop = link.giveWay(this.#clock, this.#choice, () => this.#webSocket(), (next) => (this.#returned = next));
    const why = await link.run(received);
    stop?.();
    const nowS = this.#clock.now();
    if (!this.#returned) this.#choice.ended(nowS, this.#attempt, nowS - beganS, link.heard, link.cut);
    return why;
  }
}

export const whyOf = (error: unknown): Failure => (error as Partial<NotConnected>).why ?? "broken";
