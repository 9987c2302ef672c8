/** Every number by which a client decides, beside those of the core (core/settings.ts). */

export const DRAIN_S = 1; // how long a closing client waits for its last acknowledgements to be sent
export const READS_S = 0.1; // what came before a wake and was not read yet is no answer: it is read first
export const ANSWER_S = 10; // after a wake the service has so long to say something
export const WAKE_S = 2; // several signs of one wake come together
export const CONNECT_S = 15;
export const LOAD_S = 5; // so long a client waits for its own parts before it connects again without them
export const URL_TRIES = 3; // failures in a row, and the next address has its turn
export const QUEUE_MAX = 1_000;
/** A page cannot ping: this is how long three pings would take on a connection on which nothing was ever said. */
export const SILENT_S = 30;
