/** What a client may be given, what its events tell, and what is taken where nothing is given. */

import type { Channel } from "./channels/channel.ts";
import type { SocketClass } from "./channels/websocket.ts";
import { type Clock, systemClock } from "./clock.ts";
import type { RoskvaError } from "./core/errors.ts";
import type { Config } from "./core/messages.ts";
import type { Provider } from "./credentials.ts";
import { checkApplication, checkDevice } from "./core/model.ts";
import { InvalidSetting } from "./errors.ts";
import type { Handler } from "./registrations.ts";
import type { SessionOptions } from "./session.ts";
import { MemoryState } from "./stores/memory.ts";
import type { StateStore } from "./stores/store.ts";
import { WebStorageState } from "./stores/webstorage.ts";
import { scopeOf } from "./tabs/messages.ts";

export interface ClientOptions {
  readonly application: string;
  /** The client's own id, unique per installation, by which publishers name the source of a change. Without it a random one, kept. */
  readonly device?: string;
  /** Where the identity is kept between runs. In pages localStorage, without tabs sessionStorage; else nowhere: see roskva/node. */
  readonly state?: StateStore;
  /** How messages travel. `auto`: a WebSocket, and long polls where a proxy breaks it. Or a Channel of one's own; then no url counts. */
  readonly channel?: "auto" | "websocket" | "long-poll" | Channel;
  /** The tabs of a page share one connection. So it is wherever the platform can. */
  readonly tabs?: boolean;
  /** When it is aborted, the client is closed. */
  readonly signal?: AbortSignal;
  /** Called with the notifications of objects without a handler of their own; then there are none to loop over. */
  readonly onNotify?: Handler;
  /** The policy until the service sends its own. */
  readonly config?: Partial<Config>;
  /**
   * Who the user is, where the application asks for that: a text, or a function that answers one, called at the start and whenever another
   * is needed. `useCredential` changes it.
   */
  readonly credential?: string | Provider;
  /** The class of WebSockets, where it is not the platform's. */
  readonly WebSocket?: SocketClass;
  /** By which long polls are made, where it is not the platform's. */
  readonly fetch?: typeof fetch;
  readonly clock?: Clock;
}

/** The `detail` of each event. */
export interface ClientEvents {
  connected: { readonly url: string; readonly channel: string };
  disconnected: { readonly reason: string };
  insync: null;
  outofsync: null;
  registered: { readonly name: string };
  unregistered: { readonly name: string };
  failed: { readonly name: string; readonly transient: boolean; readonly code: string; readonly message: string };
  /** Registrations may be stated now. Those of this run the client restates by itself. */
  reissue: null;
  /** A handler failed (then `name` is the object's), or the service refused a message, or cannot be reached. The client goes on. */
  error: { readonly error: unknown; readonly name?: string };
  /** The service does nothing for this client's user until it is given another credential. The client keeps trying, with pauses. */
  credentialrefused: { readonly code: string; readonly message: string };
  /** The client ended by itself, or was forgotten. */
  stopped: { readonly error: RoskvaError };
}

export interface Settled extends SessionOptions {
  credential?: SessionOptions["credential"];
  readonly tabs: boolean;
  readonly _stateAlone: StateStore; // if it does not share after all
  readonly onNotify?: Handler;
}

/** Checked, and complete. */
export function settled(url: string | readonly string[], options: ClientOptions): Settled {
  const { application, device = "", channel = "auto", clock = systemClock, config = {}, tabs = canShare() } = options;
  checkApplication(application);
  if (device) checkDevice(device);
  const socket = options.WebSocket ?? (globalThis.WebSocket as SocketClass | undefined);
  checkChannel(channel, socket);
  const urls = typeof channel !== "string" ? ["the application's channel"] : addresses(url);
  const key = `roskva:${application}:${device}`;
  const stateAlone = options.state ?? defaultState(key, false);
  const state = tabs ? (options.state ?? defaultState(scopeOf(application, device), true)) : stateAlone;
  return { ...options, _urls: urls, channel, _socket: socket, device, config, clock, tabs, state, _stateAlone: stateAlone };
}

function checkChannel(channel: unknown, socket: unknown): void {
  const named = channel === "auto" || channel === "long-poll" || (channel === "websocket" && socket);
  if (named || (channel as Partial<Channel> | null)?.listen) return;
  throw new InvalidSetting(`${channel} is not a channel here. Use auto, websocket, long-poll or a Channel.`);
}

function addresses(url: string | readonly string[]): string[] {
  const urls = [url].flat() as string[];
  // A page may leave its own origin out.
  const here = globalThis.location?.href;
  return (urls.length ? urls : [""]).map((one) => {
    try {
      const { protocol, href } = new URL(one || "/", here);
      if (/^https?:$/.test(protocol)) return href.replace(/\/+$/, "");
    } catch {
      // As below.
    }
    throw new InvalidSetting(`${one} is not an address. Use http://HOST:PORT.`);
  });
}

function canShare(): boolean {
  return !!(globalThis.document && globalThis.navigator?.locks && globalThis.BroadcastChannel);
}

function defaultState(key: string, shared: boolean): StateStore {
  try {
    if (globalThis.document) return new WebStorageState(key, shared ? localStorage : sessionStorage);
  } catch {
    // A page that may not keep anything.
  }
  return new MemoryState();
}
