/** A connection over a WebSocket (docs/protocol.md, WebSocket): a browser's, or Node's from 22 on, or the one that is given. */

import { systemClock } from "../clock.ts";
import { CONNECT_S, SILENT_S } from "../settings.ts";
import { Link, NotConnected, type Received } from "./link.ts";


/** As much of the platform's class as is used here. */
export interface Socket {
  onopen: unknown;
  onmessage: unknown;
  onerror: unknown;
  onclose: unknown;
  send(data: string): void;
  close(): void;
}
export type SocketClass = new (url: string) => Socket;

class WebSocketLink extends Link {
  readonly #socket: Socket;
  #giveUp: () => void = () => {};

  constructor(socket: Socket) {
    super();
    this.#socket = socket;
    // From the first moment on: it may not open, or wait beside long polls for its turn.
    socket.onerror = () => {}; // `onclose` follows
    socket.onclose = ({ code, wasClean }: CloseEvent) => this._hangUp(`closed by the service with ${code}`, !wasClean);
  }

  protected _open(received: Received): void {
    this.#socket.onmessage = ({ data }: MessageEvent) => received(data);
    this.#giveUp = systemClock.after(SILENT_S, () => {
      if (!this._heard) this._hangUp("not answered", true);
    });
  }

  protected _put(messages: string[]): void {
    for (const data of messages) this.#socket.send(data);
  }

  _shut(): void {
    this.#giveUp();
    this.#socket.close();
  }
}

export async function connectWebSocket(service: string, Socket: SocketClass, signal: AbortSignal): Promise<Link> {
  const url = `${service}/v1/channel`;
  const socket = new Socket(url.replace("http", "ws"));
  const link = new WebSocketLink(socket);
  const abort = (): void => link._hangUp("not waited for");
  const cancel = systemClock.after(CONNECT_S, () => link._hangUp(`not answered within ${CONNECT_S} s`));
  signal.addEventListener("abort", abort);
  const why = await Promise.race([new Promise<void>((open) => (socket.onopen = () => open())), link._ended]);
  cancel();
  signal.removeEventListener("abort", abort);
  if (!why) return link;
  link._shut();
  throw new NotConnected(`${url} cannot be reached by WebSocket: ${why}.`, "broken");
}
