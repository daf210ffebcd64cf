// The place in the studio: a path behind `#`, so that reloads and links work, and the server is not asked for it.

import { useSyncExternalStore } from "react";

export type Route = { path: string[]; query: URLSearchParams };

const read = () => location.hash.slice(1) || "/";
const onHash = (tell: () => void) => {
  addEventListener("hashchange", tell);
  return () => removeEventListener("hashchange", tell);
};

export function parse(hash: string): Route {
  const [path, query = ""] = hash.split("?", 2);
  return { path: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
}

export const useRoute = (): Route => parse(useSyncExternalStore(onHash, read));

export function link(path: string[], query: Record<string, string | null | undefined> = {}): string {
  const search = new URLSearchParams(Object.entries(query).filter((one): one is [string, string] => Boolean(one[1])));
  const text = search.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export const go = (href: string) => void (location.hash = href);

/** Change the query of the place without a step in the history. */
export function replaceQuery(path: string[], query: Record<string, string | null | undefined>): void {
  const href = link(path, query);
  if (href === location.hash) return;
  history.replaceState(null, "", href);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export const agentLink = (address: string, tab?: string) => link(tab ? ["a", address, tab] : ["a", address]);
