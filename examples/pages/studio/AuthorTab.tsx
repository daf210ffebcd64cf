// A tab that the author of a class adds: a page of their own, in a frame that reaches nothing but this one.

import { useEffect, useMemo, useRef, useState } from "react";
import type { TabProps } from "./Agent";
import { ask } from "./api";
import { segments } from "./format";
import { asError, useAnswer } from "./hooks";
import { useSession } from "./session";
import type { Content, Json } from "./types";

const EVERY = 1000;
/** Requests of one page that are unanswered at the same time. */
const MOST = 16;

type Message = { id?: unknown; state?: unknown; call?: unknown; arguments?: unknown; watch?: unknown };
type State = { state: Content<Json> };

export default function AuthorTab({ address, row, number = 0 }: TabProps) {
  const session = useSession();
  const { type, name } = segments(address).at(-1)!;
  const tab = session.tabs[type][number];
  const frame = useRef<HTMLIFrameElement>(null);
  const port = useRef<MessagePort | null>(null);
  const watchers = useRef<number[]>([]);
  const [isWatched, setWatched] = useState(false);
  const { data } = useAnswer<State>("state", isWatched ? { address } : null, row.status === "asleep" ? 0 : EVERY);
  const text = data && JSON.stringify({ status: row.status, state: data.state });
  const latest = useRef(text);
  latest.current = text;
  const methods = useMemo(() => (session.can("act") && (!tab.scope || session.can(tab.scope)) ? tab.methods : []), [tab]);

  useEffect(() => {
    if (text) for (const id of watchers.current) port.current?.postMessage({ id, result: JSON.parse(text) });
  }, [text]);
  useEffect(() => () => port.current?.close(), []);

  const onLoad = () => {
    const { port1, port2 } = new MessageChannel();
    let open = 0;
    port.current?.close();
    port.current = port1;
    watchers.current = [];
    const reply = (id: number, answer: object) => port.current === port1 && port1.postMessage({ id, ...answer });
    port1.onmessage = async ({ data: message }: MessageEvent<Message>) => {
      const { id } = message ?? {};
      if (typeof id !== "number") return;
      if (message.watch) {
        if (watchers.current.length >= MOST) return reply(id, { error: "The page watches too often.", code: "over_limit" });
        watchers.current.push(id);
        setWatched(true);
        if (latest.current) reply(id, { result: JSON.parse(latest.current) });
        return;
      }
      if (open >= MOST) return reply(id, { error: `At most ${MOST} requests at a time.`, code: "over_limit" });
      open++;
      try {
        reply(id, { result: await answer(message) });
      } catch (failure) {
        const { message: error, code } = asError(failure);
        reply(id, { error, code });
      } finally {
        open--;
      }
    };
    // Its origin is none, so no other target fits. The policy of this page lets the frame show tabs of this server only.
    frame.current!.contentWindow!.postMessage({ sapwood: "tab", agent: { address, type, name, methods } }, "*", [port2]);
  };

  const answer = async (message: Message): Promise<unknown> => {
    if (message.state) return (await ask<State>("state", { address })).state;
    return (await ask<{ result: unknown }>("tab-call", { address, tab: tab.title, method: message.call, arguments: message.arguments ?? [] })).result;
  };

  return <iframe ref={frame} className="author-tab" title={tab.title} sandbox="allow-scripts" referrerPolicy="no-referrer" src={`tabs/${encodeURIComponent(type)}/${number}/`} onLoad={onLoad} />;
}
