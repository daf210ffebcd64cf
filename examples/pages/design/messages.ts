import type { UIMessage } from "ai";

/** Fetch what was said. While the server cannot be reached, ask again: it may be starting. */
export async function messagesOf({ url }: { url?: string }): Promise<UIMessage[]> {
  const address = new URL(url!);
  address.pathname += "/get-messages";
  for (let pause = 250; ; pause = Math.min(2 * pause, 2000)) {
    const answer = await fetch(address).catch(() => null);
    if (answer?.ok) return answer.json();
    if (answer && answer.status < 500) return []; // there is nobody; the socket is told so too
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}
