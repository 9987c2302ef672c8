/**
 * A client's first connections: to the first address, over a WebSocket or the application's channel. What chooses between several is
 * loaded later (connector.ts).
 */

import type { Channel } from "./channels/channel.ts";
import { type Link, NotConnected, type Received } from "./channels/link.ts";
import { type SocketClass, WebSocketLink } from "./channels/websocket.ts";
import type { Failure, Kind } from "./choice.ts";

export type ChannelChoice = "auto" | "websocket" | "long-poll" | Channel;

/** Again and again: `connect`, `carry`. */
export interface Connections {
  /** Where the client is connected, or tries to. */
  readonly url: string;
  readonly kind: Kind;
  /** The next connection is made already. */
  readonly hasNext: boolean;
  /** The next connection. NotConnected says why there is none; then it is another's turn. */
  connect(): Promise<Link>;
  /** Run the connection to its end; answers why it ended. */
  carry(link: Link, received: Received): Promise<string>;
  /** Whatever is being made is of no use any more. */
  close(): void;
}

export class First implements Connections {
  readonly url: string;
  readonly kind: Kind;
  readonly hasNext = false;
  readonly #channel: ChannelChoice;
  readonly #socket: SocketClass | undefined;
  readonly #over = new AbortController();

  constructor([url]: readonly string[], channel: ChannelChoice, socket: SocketClass | undefined) {
    this.url = url as string;
    this.#channel = channel;
    this.#socket = socket;
    const kind = kindOf(channel, socket);
    this.kind = kind === "auto" ? "websocket" : kind;
  }

  async connect(): Promise<Link> {
    if (typeof this.#channel !== "string") return this.#channel.link();
    if (this.kind === "long-poll") throw new NotConnected("What polls is not loaded.", "unreachable");
    return WebSocketLink.connect(this.url, this.#socket as SocketClass, this.#over.signal);
  }

  carry(link: Link, received: Received): Promise<string> {
    return link.run(received);
  }

  close(): void {
    this.#over.abort();
  }
}

export const kindOf = (channel: ChannelChoice, socket: SocketClass | undefined): Kind | "auto" =>
  typeof channel !== "string" ? "carried" : channel === "auto" && !socket ? "long-poll" : channel;

export const whyOf = (error: unknown): Failure => (error as Partial<NotConnected>).why ?? "broken";
