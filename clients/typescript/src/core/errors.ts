/**
 * Every error that the core can show a person: what happened, to what, and what to do next.
 *
 *     RoskvaError
 *     +-- InvalidName          an object's name is empty, too long or not decodable
 *     +-- InvalidVersion       a version is not an integer from 0 to 2^63-1
 *     +-- InvalidApplication   an application's name has forbidden characters
 *     +-- InvalidDevice        a device is empty or too long
 *     +-- InvalidSetting       an option does not fit
 *     +-- MalformedMessage     a message is not JSON, or not of the documented form
 *     +-- StateDamaged         what was kept is not a state that this library wrote
 *     +-- ClientStopped        this client was superseded twice in a minute, or was stopped
 *
 * `code` is stable, the same as everywhere else (docs/errors.md). What the service reports under a code of its own is a RoskvaError.
 */

import { shown } from "./shown.ts";

export class RoskvaError extends Error {
  readonly code: string;

  constructor(code: string, message: string) {
    super(message);
    this.name = "RoskvaError"; // one name for all: minifiers rename classes, and `code` says which it is
    this.code = code;
  }
}

export class InvalidName extends RoskvaError {
  constructor(name: unknown, reason: string) {
    super(
      "invalid-name",
      `${shown(name)} is not a name: ${reason}. Use 1 to 128 bytes of text, or base64:...`,
    );
  }
}

export class InvalidVersion extends RoskvaError {
  constructor(version: unknown) {
    super("invalid-version", `${shown(version)} is not a version. Use 0n to 2n ** 63n - 1n.`);
  }
}

export class InvalidApplication extends RoskvaError {
  constructor(application: unknown) {
    super(
      "invalid-application",
      `${shown(application)} is not an application. Use 1 to 64 of a-z, 0-9 and ._-, a letter or digit first.`,
    );
  }
}

export class InvalidDevice extends RoskvaError {
  constructor(device: unknown) {
    super("invalid-device", `${shown(device)} is not a device. Use 1 to 128 bytes of text, unique per installation.`);
  }
}

export class InvalidSetting extends RoskvaError {
  constructor(what: string) {
    super("invalid-setting", what);
  }
}

export class MalformedMessage extends RoskvaError {
  constructor(what: string) {
    super("malformed-message", what);
  }
}

export class StateDamaged extends RoskvaError {
  constructor(what: string) {
    super("state-damaged", what);
  }
}

/** Said by the one who signed out; its tabs hear only the words. */
export const FORGOTTEN = "The client was forgotten.";

export class ClientStopped extends RoskvaError {
  constructor(what: string) {
    super("client-stopped", `${what} Start a new client; give each running client a state of its own.`);
  }
}
