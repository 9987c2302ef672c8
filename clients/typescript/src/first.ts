/**
 * A client's first connections: to the first address, over a WebSocket or the application's channel. What chooses between several is
 * loaded later (connector.ts).
 */

import type { Channel } from "./channels/channel.ts";
import { type Link, NotConnected, type Received } from "./channels/link.ts";
import { connectWebSocket, type SocketClass } from "./channels/websocket.ts";
import type { Kind } from "./choice.ts";
import type { ClientCore } from "./core/core.ts";
import { pauseS } from "./core/limits.ts";
import type { SessionOptions } from "./session.ts";

export type ChannelChoice = "auto" | "websocket" | "long-poll" | Channel;

/** Again and again: `connect`, `carry`. */
export interface Connections {
  /** Where the client is connected, or tries to. */
  readonly url: string;
  readonly _kind: Kind;
  /** Before the next, after so many failures in a row. */
  _pauseS(core: ClientCore, failures: number): number;
  /** The next connection. NotConnected says why there is none; then it is another's turn. */
  _connect(): Promise<Link>;
  /** Run the connection to its end; answers why it ended. */
  _carry(link: Link, received: Received): Promise<string>;
  /** Whatever is being made is of no use any more. */
  close(): void;
}

export function firstConnections({ _urls: [url], channel, _socket: socket }: SessionOptions): Connections {
  const over = new AbortController();
  const kind = kindOf(channel, socket);
  return {
    url: url as string,
    _kind: kind === "auto" ? "websocket" : kind,
    _pauseS: ({ config }, failures) => pauseS(config, failures, Math.random()),
    async _connect() {
      if (typeof channel !== "string") return channel.link();
      if (kind === "long-poll") throw new NotConnected("What polls is not loaded.", "unreachable");
      return connectWebSocket(url as string, socket as SocketClass, over.signal);
    },
    _carry: (link, received) => link._run(received),
    close: () => over.abort(),
  };
}

export const kindOf = (channel: ChannelChoice, socket: SocketClass | undefined): Kind | "auto" =>
  typeof channel !== "string" ? "carried" : channel === "auto" && !socket ? "long-poll" : channel;
