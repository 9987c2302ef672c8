/**
 * A client's first connections: over a WebSocket or the application's channel. What chooses between several is loaded later (connector.ts).
 */

import type { Channel } from "./channels/channel.ts";
import { type Link, NotConnected, type Received } from "./channels/link.ts";
import { connectWebSocket, type SocketClass } from "./channels/websocket.ts";
import type { Kind } from "./choice.ts";
import type { ClientCore } from "./core/core.ts";
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
}

export async function connectFirst(url: string, { channel, _socket: socket }: SessionOptions, signal: AbortSignal): Promise<Link> {
  if (typeof channel !== "string") return channel.link();
  if (kindOf(channel, socket) === "long-poll") throw new NotConnected("What polls is not loaded.", "unreachable");
  return connectWebSocket(url, socket as SocketClass, signal);
}

export const kindOf = (channel: ChannelChoice, socket: SocketClass | undefined): Kind | "auto" =>
  typeof channel !== "string" ? "carried" : channel === "auto" && !socket ? "long-poll" : channel;
