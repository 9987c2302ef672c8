/** The public interface of channels, for an application that carries Roskva over a connection that it already has. */

import { Link, type Received } from "./link.ts";

/**
 * One end of a way for messages. Two methods: a subclass defines `send`, which Roskva calls with each message for the other side; whoever
 * reads the connection calls `received` with each message that came from the other side. A message is a text, passed on whole and
 * unchanged (as UTF-8, where bytes are carried). The way may lose messages, repeat them and change their order.
 *
 * Two more only save time: `interrupted`, to be called, and `ended`, which a subclass may define.
 */
export abstract class Channel {
  #listener: Received | null = null;
  #interrupted: (() => void) | null = null;

  /** Carry this message to the other side, soon. What cannot be carried now is dropped. */
  abstract send(data: string): void;

  /** The other side's message came. Dropped if nobody listens, or not any more. */
  received(data: string): void {
    this.#listener?.(data);
  }

  /** The other side may have forgotten this one: the client speaks again, without waiting for silence. */
  interrupted(): void {
    this.#interrupted?.();
  }

  /** The client is closed, or begins again. Who can tell the other side so may do it here. */
  ended(): void {}

  /** For Roskva: who is told of what comes from now on. */
  listen(listener: Received | null, interrupted: (() => void) | null): void {
    this.#listener = listener;
    this.#interrupted = interrupted;
  }

  /** For Roskva: a connection over it. */
  link(): Link {
    return new CarriedLink(this);
  }
}

/** There is nothing to open and nothing to close: the client speaks, and if it is not answered it begins again. */
class CarriedLink extends Link {
  readonly #channel: Channel;

  constructor(channel: Channel) {
    super();
    this.#channel = channel;
  }

  protected _open(received: Received): void {
    this.#channel.listen(received, () => this._hangUp("interrupted"));
  }

  protected _put(messages: string[]): void {
    for (const data of messages) this.#channel.send(data);
  }

  _shut(): void {
    this.#channel.listen(null, null);
    this.#channel.ended();
  }
}
