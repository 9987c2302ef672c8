/** Makes a client's connections, one after the other, as the choice says (choice.ts); as src/roskva/client/channels/connector.py. */

import type { Link, Received } from "./channels/link.ts";
import { LongPollLink, whyOf } from "./channels/longpoll.ts";
import type { SocketClass } from "./channels/websocket.ts";
import { type Attempt, Choice, type Kind } from "./choice.ts";
import type { Clock } from "./clock.ts";
import type { ClientCore } from "./core/core.ts";
import { connectPauseS } from "./core/connecting.ts";
import type { ChannelChoice, Connections } from "./first.ts";
import type { SessionOptions } from "./session.ts";
import { connectWebSocket, kindOf } from "./together.ts";

/** What became of the first attempt, which was not made here: `first.ts` made the same one. */
export interface Outcome {
  readonly error: unknown;
  readonly link: Link | null;
  readonly livedS: number;
}

/** Again and again: `connect`, `carry`. */
export class Connector implements Connections {
  /** Where the client is connected, or tries to. */
  url: string;
  _kind: Kind;
  readonly #clock: Clock;
  readonly #urls: readonly string[];
  readonly #channel: ChannelChoice;
  readonly #socket: SocketClass | undefined;
  readonly #fetch: SessionOptions["fetch"];
  readonly #over: AbortSignal; // aborted: whatever is being made is of no use any more
  readonly #choice: Choice;
  #attempt: Attempt;
  #returned: Link | null = null; // made beside long polls, to take their place

  constructor({ _urls: urls, channel, _socket: socket, fetch, clock }: SessionOptions, over: AbortSignal, first?: Outcome) {
    this.#urls = urls;
    this.#channel = channel;
    this.#socket = socket;
    this.#fetch = fetch;
    this.#clock = clock;
    this.#over = over;
    over.addEventListener("abort", () => this.#returned?._shut(), { once: true });
    this.#choice = new Choice(urls.length, kindOf(channel, socket), Math.random);
    this.#attempt = this.#choice._attempt(0);
    this.url = urls[0] as string;
    this._kind = this.#attempt.kind;
    if (first?.link) this.#choice._ended(clock.now(), this.#attempt, first.livedS, first.link._heard, first.link._cut);
    else if (first) this.#choice._failed(clock.now(), this.#attempt, whyOf(first.error));
  }

  _pauseS({ config, spreadS }: ClientCore, failures: number): number {
    return this.#returned ? 0 : connectPauseS(config, failures, Math.random(), spreadS);
  }

  /** The next connection. NotConnected says why there is none; then it is another's turn. */
  async _connect(): Promise<Link> {
    const returned = this.#returned;
    this.#returned = null;
    this.#attempt = returned ? this.#choice._returned() : this.#choice._attempt(this.#clock.now());
    this.url = this.#urls[this.#attempt.url] as string;
    this._kind = this.#attempt.kind;
    try {
      return returned ?? (await this.#make());
    } catch (error) {
      this.#choice._failed(this.#clock.now(), this.#attempt, whyOf(error));
      throw error;
    }
  }

  async #make(): Promise<Link> {
    if (typeof this.#channel !== "string") return this.#channel.link();
    if (this._kind !== "long-poll") return this.#webSocket();
    return LongPollLink.connect(this.url, this.#over, this.#fetch);
  }

  #webSocket(): Promise<Link> {
    return connectWebSocket(this.url, this.#socket as SocketClass, this.#over);
  }

  /** Run the connection to its end; answers why it ended. */
  async _carry(link: Link, received: Received): Promise<string> {
    const beganS = this.#clock.now();
    const polls = link instanceof LongPollLink ? link : null;
    const stop = polls?._giveWay(this.#clock, this.#choice, () => this.#webSocket(), (next) => (this.#returned = next));
    const why = await link._run(received);
    stop?.();
    const nowS = this.#clock.now();
    if (!this.#returned) this.#choice._ended(nowS, this.#attempt, nowS - beganS, link._heard, link._cut);
    return why;
  }
}
