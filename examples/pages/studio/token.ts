// The token of this tab. The link that the server prints has it in its fragment, which browsers never send.

const KEY = "sapwood-studio-token";
const listeners = new Set<() => void>();
let refused: string | null = null;

/** Move a token from the fragment of the URL to this tab, so that it is neither shown nor copied with the URL. */
export function takeToken(): void {
  const found = /^#t=([^&]+)(?:&at=(.*))?$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", `${location.pathname}#${found[2] ? decodeURIComponent(found[2]) : "/"}`);
  setToken(decodeURIComponent(found[1]));
}

export const getToken = (): string | null => sessionStorage.getItem(KEY);

export function setToken(token: string | null, why: string | null = null): void {
  if (token) sessionStorage.setItem(KEY, token);
  else sessionStorage.removeItem(KEY);
  refused = why;
  listeners.forEach((tell) => tell());
}

/** Why the last token is gone, as the server said. */
export const getRefusal = (): string | null => refused;

export function onToken(tell: () => void): () => void {
  listeners.add(tell);
  return () => listeners.delete(tell);
}
