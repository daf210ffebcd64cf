import { type ReactNode, useEffect, useState } from "react";
import { Cross, Glass, Link } from "../design";
import { type Call, type Room, UNTITLED } from "./Rooms";

type Found = { id: string; title: string; at: number; found: string | null };
type Streams = { call: (method: string, args: unknown[], options: { stream: { onChunk: (chunk: unknown) => void; onError: () => void } }) => Promise<unknown> };

/** What is searched for, and what was found: again whenever something has changed in the rooms. */
export function useSearch(call: Call, rooms: Room[] | undefined) {
  const [wanted, set] = useState("");
  const [found, setFound] = useState<Found[]>();
  useEffect(() => {
    if (!wanted.trim()) return setFound(undefined);
    let isLatest = true;
    const soon = setTimeout(() => call<Found[]>("search", wanted).then((rows) => isLatest && setFound(rows), () => undefined), 80);
    return () => {
      isLatest = false;
      clearTimeout(soon);
    };
  }, [wanted, rooms]);
  return { wanted, set, found: wanted.trim() ? found : undefined };
}

type Searching = ReturnType<typeof useSearch>;

export function Search({ search, isUseful }: { search: Searching; isUseful: boolean }) {
  const { wanted, set, found } = search;
  return (
    <search className="search">
      <Glass />
      <input className="search-field" type="search" aria-label="Search titles and what was said" placeholder="Search" value={wanted} disabled={!isUseful && !wanted} onChange={(event) => set(event.target.value)} onKeyDown={(event) => event.key === "Escape" && set("")} />
      {wanted && <button type="button" className="button is-quiet search-clear" aria-label="Clear the search" onClick={() => set("")}><Cross /></button>}
      <span className="unseen" role="status">{found && (found.length ? `${found.length} found` : "Nothing found")}</span>
    </search>
  );
}

type ListProps = { inbox: Streams; isConnected: boolean; rooms: Room[]; total: number; search: Searching; open: string | null; goTo: (room: string | null) => void };

export function List({ inbox, isConnected, rooms, total, search, open, goTo }: ListProps) {
  const { wanted, found } = search;
  if (found?.length === 0) return <p className="rooms-none">No room has “{wanted.trim()}” in its title, or in what was said.</p>;
  if (rooms.length === 0) return <p className="rooms-none">You have no rooms yet. Begin one, and say something.</p>;
  const news = new Map(rooms.map((room) => [room.id, room]));
  return (
    <ul className="rooms-list">
      {(found ?? rooms).map((one) => (
        <li key={one.id}>
          <Link id={`room-${one.id}`} className="room" href={`?room=${one.id}`} current={one.id === open} onOpen={() => goTo(one.id)}>
            <span className="room-line">
              <span className="room-title">{one.title || UNTITLED}</span>
              <When at={one.at} />
            </span>
            <span className="room-line">
              <span className={"found" in one ? "room-preview is-found" : "room-preview"}>
                {"found" in one ? <Marked text={one.found ?? ""} /> : one.busy && one.id !== open ? <Growing inbox={inbox} room={one.id} isConnected={isConnected} /> : one.preview || "Nothing said yet"}
              </span>
              {news.get(one.id)?.unread && one.id !== open && <span className="room-news"><span className="unseen">, something new</span></span>}
            </span>
          </Link>
        </li>
      ))}
      {!found && total > rooms.length && <li className="rooms-more">{total - rooms.length} older rooms are found by searching.</li>}
    </ul>
  );
}

// --8<-- [start:growing]
/** An answer in a room that is not open, as it grows: the inbox passes on what the room is saying. */
function Growing({ inbox, room, isConnected }: { inbox: Streams; room: string; isConnected: boolean }) {
  const [text, setText] = useState("");
  useEffect(() => {
    if (!isConnected) return;
    let isShown = true;
    setText("");
    const onChunk = (words: unknown) => isShown && setText((text) => text + words);
    inbox.call("listen", [room], { stream: { onChunk, onError: () => undefined } }).catch(() => undefined);
    return () => void (isShown = false);
  }, [room, isConnected]);
  return <><span className="dots" aria-hidden="true"><i /><i /><i /></span><span className="unseen">is answering</span><span className="growing" aria-hidden="true">{plain(text).slice(-64)}</span></>;
}

// --8<-- [end:growing]
/** What was found, with its words between two signs that nobody writes. */
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
