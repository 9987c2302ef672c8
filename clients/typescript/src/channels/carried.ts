/** A connection over a channel of the application's own (channel.ts). */

import { Channel } from "./channel.ts";
import { Link, type Received } from "./link.ts";

/** There is nothing to open and nothing to close: the client speaks, and if it is not answered it begins again. */
export class CarriedLink extends Link {
  readonly #channel: Channel;

  constructor(channel: Channel) {
    super();
    this.#channel = channel;
  }

  protected open(received: Received): void {
    this.#channel.listen(received, () => this.hangUp("interrupted"));
  }

  protected put(messages: string[]): void {
    for (const data of messages) this.#channel.send(data);
  }

  shut(): void {
    this.#channel.listen(null, null);
    this.#channel.ended();
  }
}

export { Channel };
