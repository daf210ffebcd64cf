import { type ReactNode, useEffect, useState } from "react";
import { Cross, Glass, Link } from "../design";
import { type Call, type Room, UNTITLED } from "./Rooms";

type Result = { id: string; title: string; at: number; snippet: string | null };
type Streams = { call: (method: string, args: unknown[], options: { stream: { onChunk: (chunk: unknown) => void; onError: () => void } }) => Promise<unknown> };

/** The search query and its results, updated when the rooms change. */
export function useSearch(call: Call, rooms: Room[] | undefined) {
  const [query, set] = useState("");
  const [results, setResults] = useState<Result[]>();
  useEffect(() => {
    if (!query.trim()) return setResults(undefined);
    let isLatest = true;
    const timer = setTimeout(() => call<Result[]>("search", query).then((rows) => isLatest && setResults(rows), () => undefined), 80);
    return () => {
      isLatest = false;
      clearTimeout(timer);
    };
  }, [query, rooms]);
  return { query, set, results: query.trim() ? results : undefined };
}

type SearchState = ReturnType<typeof useSearch>;

export function Search({ search, isUseful }: { search: SearchState; isUseful: boolean }) {
  const { query, set, results } = search;
  return (
    <search className="search">
      <Glass />
      <input className="search-field" type="search" aria-label="Search titles and messages" placeholder="Search" value={query} disabled={!isUseful && !query} onChange={(event) => set(event.target.value)} onKeyDown={(event) => event.key === "Escape" && set("")} />
      {query && <button type="button" className="button is-quiet search-clear" aria-label="Clear the search" onClick={() => set("")}><Cross /></button>}
      <span className="unseen" role="status">{results && (results.length ? `${results.length} found` : "Nothing found")}</span>
    </search>
  );
}

type ListProps = { inbox: Streams; isConnected: boolean; rooms: Room[]; total: number; search: SearchState; open: string | null; goTo: (room: string | null) => void };

export function List({ inbox, isConnected, rooms, total, search, open, goTo }: ListProps) {
  const { query, results } = search;
  if (results?.length === 0) return <p className="rooms-none">No room has “{query.trim()}” in its title or messages.</p>;
  if (rooms.length === 0) return <p className="rooms-none">You have no rooms yet. Create one, and send a message.</p>;
  const byId = new Map(rooms.map((room) => [room.id, room]));
  return (
    <ul className="rooms-list">
      {(results ?? rooms).map((one) => (
        <li key={one.id}>
          <Link id={`room-${one.id}`} className="room" href={`?room=${one.id}`} current={one.id === open} onOpen={() => goTo(one.id)}>
            <span className="room-line">
              <span className="room-title">{one.title || UNTITLED}</span>
              <When at={one.at} />
            </span>
            <span className="room-line">
              <span className={"snippet" in one ? "room-preview is-found" : "room-preview"}>
                {"snippet" in one ? <Marked text={one.snippet ?? ""} /> : one.busy && one.id !== open ? <Streaming inbox={inbox} room={one.id} isConnected={isConnected} /> : one.preview || "No messages yet"}
              </span>
              {byId.get(one.id)?.unread && one.id !== open && <span className="room-news"><span className="unseen">, unread</span></span>}
            </span>
          </Link>
        </li>
      ))}
      {!results && total > rooms.length && <li className="rooms-more">Search to find {total - rooms.length} older rooms.</li>}
    </ul>
  );
}

// --8<-- [start:streaming]
/** The streaming answer of a room that is not open, forwarded by the inbox. */
function Streaming({ inbox, room, isConnected }: { inbox: Streams; room: string; isConnected: boolean }) {
  const [text, setText] = useState("");
  useEffect(() => {
    if (!isConnected) return;
    let isShown = true;
    setText("");
    const onChunk = (delta: unknown) => isShown && setText((text) => text + delta);
    inbox.call("listen", [room], { stream: { onChunk, onError: () => undefined } }).catch(() => undefined);
    return () => void (isShown = false);
  }, [room, isConnected]);
  return <><span className="dots" aria-hidden="true"><i /><i /><i /></span><span className="unseen">is answering</span><span className="growing" aria-hidden="true">{plain(text).slice(-64)}</span></>;
}

// --8<-- [end:streaming]
/** A snippet. The control characters 2 and 3 enclose the words that match. */
function Marked({ text }: { text: string }): ReactNode {
  return plain(text).split(/(\x02[^\x03]*\x03)/).map((part, at) => (at % 2 ? <mark key={at}>{part.slice(1, -1)}</mark> : part));
}

const plain = (text: string) => text.replace(/^\s*(?:[-•]|\d+\.) |[*_`#>|]+/gm, "").replace(/\s+/g, " ");

function When({ at }: { at: number }) {
  const then = new Date(at * 1000), now = new Date();
  const days = (now.setHours(0, 0, 0, 0) - new Date(then).setHours(0, 0, 0, 0)) / 86_400_000;
  const form: Intl.DateTimeFormatOptions = days < 1 ? { hour: "2-digit", minute: "2-digit" } : days < 7 ? { weekday: "short" } : { day: "numeric", month: "short" };
  return <time dateTime={then.toISOString()} title={then.toLocaleString()}>{then.toLocaleString(undefined, form)}</time>;
}
