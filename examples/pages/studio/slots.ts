// Streams of all tabs of a browser: it opens six connections to a server, and requests need some of them.

const NAMES = [1, 2, 3, 4].map((number) => `sapwood-studio-stream-${number}`);

/** Take the place of a stream until the returned function is called; `null` if the streams of other tabs have all places. */
export async function takeSlot(): Promise<(() => void) | null> {
  if (!navigator.locks) return () => undefined; // without HTTPS, tabs know nothing of each other
  for (const name of NAMES) {
    const free = await new Promise<(() => void) | null>((take) => {
      void navigator.locks.request(name, { ifAvailable: true }, (lock) => {
        if (lock) return new Promise<void>(take);
        take(null);
      });
    });
    if (free) return free;
  }
  return null;
}
