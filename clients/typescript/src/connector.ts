/** Makes a client's connections, one after the other, as the choice says (choice.ts); as src/roskva/client/channels/connector.py. */

import type { Link, Received } from "./channels/link.ts";
import { LongPollLink } from "./channels/longpoll.ts";
import type { SocketClass } from "./channels/websocket.ts";
import { type Attempt, Choice, type Kind } from "./choice.ts";
import type { Clock } from "./clock.ts";
import type { ChannelChoice, Connections } from "./first.ts";
import { kindOf, WebSocketLink, whyOf } from "./together.ts";

/** Again and again: `connect`, `carry`. */
export class Connector implements Connections {
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
    this.#choice = new Choice(urls.length, kindOf(channel, socket), Math.random);
    this.#attempt = this.#choice.attempt(0);
    this.url = urls[0] as string;
    this.kind = this.#attempt.kind;
  }

  /** What became of the first attempt, which was not made here: `first.ts` made the same one. */
  after({ error, link, livedS }: { readonly error: unknown; readonly link: Link | null; readonly livedS: number }): void {
    const nowS = this.#clock.now();
    if (link) this.#choice.ended(nowS, this.#attempt, livedS, link.heard, link.cut);
    else this.#choice.failed(nowS, this.#attempt, whyOf(error));
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
