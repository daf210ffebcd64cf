import { useAgent } from "agents/react";
import { Suspense, useCallback, useEffect, useRef, useState, useSyncExternalStore } from "react";
import { Alert, Badge, Boundary, Empty, Leave, Mark, Plus, Thinking } from "../design";
import { List, Search, useSearch } from "./List";
import { Face } from "./SignIn";
import { Gone, Talk } from "./Talk";

export type Room = { id: string; title: string; preview: string; at: number; busy: boolean; unread: boolean };
type State = { model: string; rooms: Room[]; total: number };

const SUGGESTIONS = ["Plan a weekend in Lisbon", "How do I make pancakes?", "Why do trees have rings?", "Tell me a story"];

// --8<-- [start:inbox]
export function Rooms({ user, onSignOut, onLost }: { user: string; onSignOut: () => void; onLost: () => void }) {
  const [state, setState] = useState<State>();
  const [isConnected, setConnected] = useState(false);
  const inbox = useAgent<State>({
    agent: "Inbox",
    name: user,
    onStateUpdate: setState,
    onOpen: () => setConnected(true),
    onClose: () => setConnected(false),
    maxReconnectionDelay: 2000,
  });
  const call = useCall(inbox);
  // --8<-- [end:inbox]
  const [open, goTo] = useOpenRoom();
  const isSeen = useVisible();
  const [error, setError] = useState<string>();
  const [first, setFirst] = useState<{ room: string; text: string }>();
  const [fetched, setFetched] = useState<Room | { id: string; isGone: true }>();
  const search = useSearch(call, state?.rooms);
  const listed = state?.rooms.find(({ id }) => id === open);
  const other = fetched?.id === open ? fetched : undefined;
  const room = listed ?? (other && !("isGone" in other) ? other : undefined);
  const isGone = !listed && !!other && "isGone" in other;

  // Fetch the session again: the user has signed out in another tab, or the cookie has expired.
  useEffect(() => void (inbox.connectionError && onLost()), [inbox.connectionError]);

  // The open room counts as seen. A room that is not in the list may be an older one, or may not exist.
  const isUnread = !listed || listed.unread;
  useEffect(() => {
    if (!open || !state || !isSeen || !isUnread) return;
    call<Room>("mark_seen", open).then(setFetched, ({ message }: Error) => message === NO_ROOM && setFetched({ id: open, isGone: true }));
  }, [open, !state, isSeen, isUnread]);

  const unread = state?.rooms.filter(({ id, unread }) => unread && id !== open).length ?? 0;
  useEffect(() => {
    document.title = `${unread ? `(${unread}) ` : ""}${room ? room.title || UNTITLED : "Rooms"}`;
  }, [unread, room?.title, !room]);

  const fail = ({ message }: Error) => message === NO_ROOM || setError(message);
  const create = async (text?: string) => {
    const id = await call<string>("create").catch(fail);
    if (typeof id !== "string") return;
    if (text) setFirst({ room: id, text });
    search.set("");
    goTo(id);
  };
  const back = () => {
    goTo(null);
    // On a small screen the list replaces the room: focus the room in it.
    requestAnimationFrame(() => document.getElementById(`room-${open}`)?.focus());
  };
  const remove = async (id: string) => {
    goTo(null, true);
    await call("delete", id).catch(fail);
  };

  return (
    <div className="house" data-view={open ? "room" : state?.total === 0 ? "welcome" : "list"}>
      {state && !isConnected && !inbox.connectionError && <p className="house-lost" role="status"><span className="dots" aria-hidden="true"><i /><i /><i /></span>Connection lost. Reconnecting</p>}
      <nav className="rooms" aria-label="Rooms">
        <div className="rooms-head">
          <Mark />
          <h1>Rooms</h1>
          <Badge tone={isConnected ? "good" : "warn"} dot busy={!isConnected}><span className="unseen">{isConnected ? "connected" : "connecting"}</span></Badge>
          <span className="spacer" />
          <button type="button" className="button is-main" onClick={() => void create()}><Plus />New room</button>
        </div>
        {room && <a className="skip button" href="#composer" onClick={(event) => (event.preventDefault(), document.getElementById("composer")?.focus())}>Skip to the conversation</a>}
        <Search search={search} isUseful={!!state?.rooms.length} />
        {error && <div className="rooms-error"><Alert text={error} action="OK" onAction={() => setError(undefined)} /></div>}
        {state ? <List inbox={inbox} isConnected={isConnected} rooms={state.rooms} total={state.total} search={search} open={open} goTo={goTo} /> : <div className="rooms-opening"><Thinking>Opening your rooms</Thinking></div>}
        <div className="rooms-foot">
          <Face name={user} />
          <span className="rooms-who">
            <span className="who"><span className="unseen">Signed in as </span>{user}</span>
            {state && <span className="model"><span className="unseen">, talking to </span>{state.model}</span>}
          </span>
          <button type="button" className="button is-quiet" onClick={onSignOut}><Leave />Sign out</button>
        </div>
      </nav>
      <main className="talk">
        {open && room && !isGone && (
          <Boundary key={open}>
            <Suspense fallback={<div className="opening"><Thinking>Opening the room</Thinking></div>}>
              <Talk
                user={user}
                room={room}
                first={first?.room === open ? first.text : undefined}
                onFirst={() => setFirst(undefined)}
                onRename={(title) => void call("rename", open, title).catch(fail)}
                onDelete={() => void remove(open)}
                onBack={back}
              />
            </Suspense>
          </Boundary>
        )}
        {open && !room && !isGone && <div className="opening"><Thinking>Opening the room</Thinking></div>}
        {open && isGone && <Gone onBack={back} />}
        {!open && state && (
          <div className="talk-empty">
            <Empty title={state.total ? "Choose a room, or create one" : `Welcome, ${user}`} suggestions={SUGGESTIONS} onSuggestion={(text) => void create(text)}>
              Each room is a separate conversation with its own memory. Only you can open it.
            </Empty>
          </div>
        )}
      </main>
    </div>
  );
}

export const UNTITLED = "Untitled room";
const NO_ROOM = "There is no such room.";

export type Call = <T>(method: string, ...args: unknown[]) => Promise<T>;

/** Returns a function that calls the inbox. It retries calls that were in progress when the connection broke: all methods are idempotent. */
function useCall(inbox: { call: (method: string, args: unknown[]) => Promise<unknown>; connectionError: Error | null }): Call {
  const latest = useRef(inbox);
  latest.current = inbox;
  return useCallback(async <T,>(method: string, ...args: unknown[]) => {
    for (;;) {
      try {
        return (await latest.current.call(method, args)) as T;
      } catch (error) {
        if ((error as Error).message !== "Connection closed" || latest.current.connectionError) throw error;
      }
    }
  }, []);
}

/** The room in the URL, so that users can bookmark it and use the back button. */
function useOpenRoom(): [string | null, (room: string | null, isReplacement?: boolean) => void] {
  const open = useSyncExternalStore(onMove, () => new URLSearchParams(location.search).get("room"));
  const goTo = useCallback((room: string | null, isReplacement = false) => {
    const url = room ? `?room=${encodeURIComponent(room)}` : location.pathname;
    history[isReplacement ? "replaceState" : "pushState"](null, "", url);
    dispatchEvent(new PopStateEvent("popstate"));
  }, []);
  return [open, goTo];
}

function onMove(changed: () => void) {
  addEventListener("popstate", changed);
  return () => removeEventListener("popstate", changed);
}

const useVisible = () => useSyncExternalStore(onVisible, () => document.visibilityState === "visible");

function onVisible(changed: () => void) {
  document.addEventListener("visibilitychange", changed);
  return () => document.removeEventListener("visibilitychange", changed);
}
