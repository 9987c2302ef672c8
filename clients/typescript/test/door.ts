/** The model of a service that asks who its users are, under a clock moved by hand. */

import { Channel } from "../src/channels/channel.ts";
import { Client, type ClientOptions } from "../src/client.ts";
import type { ClientMessage } from "../src/core/messages.ts";
import { Session } from "../src/session.ts";
import { HandClock } from "../src/testing/clock.ts";
import { Server } from "../src/testing/server.ts";
import "../src/credentials.ts"; // loaded before: the clock counts turns of the event loop

void Session;
const CONFIG = { retry_min_s: 0.5, retry_max_s: 4, connect_min_s: 0.1 };

/** The model of a service, behind a door at which every connection must show a credential. */
export class Door extends Channel {
  readonly clock = new HandClock();
  readonly server = new Server(CONFIG, () => this.clock.now());
  users: Record<string, number> = { good: 0 }; // for how long each is good
  why = "credential-refused";
  readonly shown: string[] = [];
  readonly heard: ClientMessage[] = [];
  #admitted = false;

  constructor() {
    super();
    const tick = (): void => {
      this.server.tick();
      this.clock.after(1, tick);
    };
    tick();
  }

  client(options: Partial<ClientOptions> = {}): Client {
    return new Client("", { application: "demo", device: "phone", channel: this, clock: this.clock, tabs: false, config: CONFIG, ...options });
  }

  override send(data: string): void {
    const message: ClientMessage = JSON.parse(data);
    this.heard.push(message);
    const { credential } = message;
    if (credential !== undefined) this.shown.push(credential);
    const goodS = this.users[credential ?? ""];
    this.clock.after(0, () => {
      if (goodS !== undefined) {
        this.#admitted = true;
        this.hear(JSON.stringify({ credential: { good_s: goodS } }));
      } else if (credential !== undefined || !this.#admitted) return this.wants(credential === undefined ? "credential-required" : this.why);
      this.server.hear(this, data);
    });
  }

  /** It says so unasked, too, when one has expired. */
  wants(code: string): void {
    this.#admitted = false;
    this.hear(JSON.stringify({ credential: { wanted: true, code, message: "Not so." } }));
  }

  hear(data: string): void {
    this.clock.after(0, () => this.received(data));
  }

  override ended(): void {
    this.#admitted = false;
    this.server.hungUp(this);
  }

  /** This user may not have it any more. */
  revoke(id: string, code = "not-authorized"): void {
    const { token = "" } = this.heard.at(-1) as ClientMessage;
    const status = [{ object: id, state: "failed", code, message: "No longer." }];
    this.hear(JSON.stringify({ token, status }));
  }
}

export async function ready(door: Door, client: Client): Promise<void> {
  door.clock.hold(client.start());
  await door.clock.until(() => client.inSync, 60);
}
