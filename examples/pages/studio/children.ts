// The addresses of children.

import type { Span } from "./types";

/** The address of a child, from its segment with the plain name. */
export function childOf(address: string, segment: string): string {
  const colon = segment.indexOf(":");
  return `${address}/${segment.slice(0, colon)}:${encodeName(segment.slice(colon + 1))}`;
}

/** The address of the agent that does a run. */
export const childOfRun = (address: string, { name, facts }: Span) => childOf(address, `${name}:${facts.child}`);

/** A name as addresses have it. */
export const encodeName = (name: string) => encodeURIComponent(name).replace(/[!'()*]/g, (one) => `%${one.charCodeAt(0).toString(16).toUpperCase()}`);
