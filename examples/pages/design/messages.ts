import type { UIMessage } from "ai";

/** Fetch the messages of an agent. While the server is unreachable, retry: it may be starting. */
export async function messagesOf({ url }: { url?: string }): Promise<UIMessage[]> {
  const address = new URL(url!);
  address.pathname += "/get-messages";
  for (let pause = 250; ; pause = Math.min(2 * pause, 2000)) {
    const response = await fetch(address).catch(() => null);
    if (response?.ok) return response.json();
    if (response && response.status < 500) return []; // no such agent; the socket reports it too
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}
