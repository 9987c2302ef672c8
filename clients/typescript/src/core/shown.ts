/**
 * What was given, for a message to a person. Pure.
 */

/** At most 80 characters of it, so that no message grows with its input. */
export function shown(value: unknown): string {
  const text = typeof value === "string" ? JSON.stringify(value) : String(value);
  return text.length <= 80 ? text : `${text.slice(0, 77)}...`;
}
