// Small parts that all screens use.

import { type KeyboardEvent, type ReactNode, useEffect, useId, useRef, useState } from "react";
import { Badge } from "../design/Page";
import type { AdminError } from "./api";
import { fullTime, plural, relative, segments } from "./format";
import { useNow } from "./hooks";
import { Copy, Good } from "./icons";
import { agentLink } from "./route";
import type { Content, Hidden, Unread } from "./types";

type Tone = "plain" | "good" | "warn" | "bad";

export const isHidden = (value: unknown): value is Hidden => typeof value === "object" && value !== null && "hidden" in value && "length" in value;

/** The head of a screen: its title, what it says in short, and its actions. */
export function Title({ title, children, actions }: { title: ReactNode; children?: ReactNode; actions?: ReactNode }) {
  return (
    <div className="title">
      <div className="title-text"><h1>{title}</h1>{children}</div>
      {actions && <div className="actions">{actions}</div>}
    </div>
  );
}

export const Loading = ({ what = "Loading" }: { what?: string }) => <p className="loading" role="status">{what} …</p>;

/** What is shown where there is nothing, and why that may be. */
export function Nothing({ title, children }: { title: string; children?: ReactNode }) {
  return <div className="nothing"><p className="nothing-title">{title}</p>{children && <p>{children}</p>}</div>;
}

export const Missing = ({ what }: { what: string }) => <div className="opening"><Nothing title={what}><a href="#/">Back to the start</a></Nothing></div>;

const ABSENT = /^The admin API has no endpoint/;
const NEEDS = /scope '(\w+)'/;

/** An error in words, with what to do about it. */
export function ErrorNote({ error, onRetry }: { error: AdminError; onRetry?: () => void }) {
  const isRefused = error.code === "refused" || error.code === "busy";
  const scope = NEEDS.exec(error.message)?.[1];
  if (ABSENT.test(error.message)) return <p className="note" role="note">This server does not offer this yet. A later version of sapwood does.</p>;
  return (
    <div className={isRefused ? "note" : "note is-bad"} role={isRefused ? "note" : "alert"}>
      <p>{isRefused && scope ? <>This needs a token with the scope <code>{scope}</code>.</> : error.message}</p>
      {onRetry && !isRefused && <button type="button" className="button is-small" onClick={onRetry}>Try again</button>}
    </div>
  );
}

/** What is shown in the place of something that the token may not see. */
export const Needs = ({ scope, what }: { scope: string; what: string }) => <p className="note" role="note">{what} with a token that has the scope <code>{scope}</code>.</p>;

/** Which processes and trees an answer says nothing about. */
export function Gaps({ unanswered = [], unread = [] }: { unanswered?: string[]; unread?: Unread[] }) {
  if (!unanswered.length && !unread.length) return null;
  return (
    <div className="note is-warn" role="note">
      {unanswered.length > 0 && <p>Not included, because they did not answer in time: {unanswered.join(", ")}.</p>}
      {unread.map(({ address, error }) => <p key={address}>{address} cannot be read: {error}</p>)}
    </div>
  );
}

const TONES: Record<string, Tone> = {
  busy: "good", running: "good", live: "good", ready: "good", completed: "plain", due: "good", waiting: "warn", asks: "warn", starting: "warn", queued: "plain",
  failed: "bad", abandoned: "bad", quarantined: "bad", aborted: "bad", interrupted: "bad", gone: "bad", dead: "bad", cancelled: "warn",
};

export const StatusBadge = ({ status, children }: { status: string; children?: ReactNode }) => (
  <Badge tone={TONES[status] ?? "plain"} dot busy={status === "busy" || status === "running"}>{children ?? status}</Badge>
);

/** A point in time, relative to now; the exact time is its title. */
export function Time({ at, live = false }: { at: number; live?: boolean }) {
  const now = useNow(live ? 1000 : 15_000);
  return <time dateTime={new Date(at * 1000).toISOString()} title={fullTime(at)}>{relative(at, now)}</time>;
}

/** An agent as a link: its path, with its name last. */
export function AgentName({ address, tab, short = false }: { address: string; tab?: string; short?: boolean }) {
  const path = segments(address);
  const last = path.at(-1)!;
  return (
    <a className="agent-name" href={agentLink(address, tab)} title={address}>
      {!short && path.slice(0, -1).map((one) => <span key={one.address} className="above">{one.type} {one.name} / </span>)}
      <span className="type">{last.type}</span> <span className="name">{last.name}</span>
    </a>
  );
}

/** The agents above something, from the root, and what else is between. */
export function AgentPath({ above, children }: { above: ReturnType<typeof segments>; children?: ReactNode }) {
  return (
    <nav className="path" aria-label="Agents above">
      <a href="#/agents">Agents</a>
      {above.map((one) => <span key={one.address}> / <a href={agentLink(one.address)}>{one.type} {one.name}</a></span>)}
      {children && <> / {children}</>}
    </nav>
  );
}

function sizeOf({ hidden, length }: Hidden): string {
  if (hidden === "string") return `text of ${plural(length, "character")}`;
  if (hidden === "array") return `list of ${plural(length, "item")}`;
  return hidden === "object" ? `object with ${plural(length, "field")}` : hidden;
}

/** What agents or people wrote, or its size if the token may not see it. */
export function Shown<T>({ value, children }: { value: Content<T>; children: (value: T) => ReactNode }) {
  if (isHidden(value)) return <span className="is-hidden" title="The token lacks the scope content">hidden: {sizeOf(value)}</span>;
  return <>{children(value)}</>;
}

/** A button that copies a text. */
export function CopyButton({ text, label = "Copy" }: { text: string | (() => string); label?: string }) {
  const [isDone, setDone] = useState(false);
  useEffect(() => {
    if (!isDone) return;
    const timer = window.setTimeout(() => setDone(false), 1500);
    return () => window.clearTimeout(timer);
  }, [isDone]);
  const copy = () => void navigator.clipboard.writeText(typeof text === "string" ? text : text()).then(() => setDone(true), () => undefined);
  return (
    <button type="button" className="button is-small" onClick={copy}>
      {isDone ? <Good /> : <Copy />}<span aria-live="polite">{isDone ? "Copied" : label}</span>
    </button>
  );
}

export type Column<Row> = { key: string; label: string; align?: "end"; grow?: boolean; secondary?: boolean; cell: (row: Row) => ReactNode };

/** A table. On a narrow screen each row becomes a block, and secondary columns get their labels. */
export function Table<Row>({ label, columns, rows, id }: { label: string; columns: Column<Row>[]; rows: Row[]; id: (row: Row) => string }) {
  return (
    <div className="table-box" tabIndex={0} role="group" aria-label={label}>
      <table className="table">
        <thead><tr>{columns.map((one) => <th key={one.key} scope="col" className={one.align}>{one.label}</th>)}</tr></thead>
        <tbody>
          {rows.map((row) => (
            <tr key={id(row)}>
              {columns.map((one) => <td key={one.key} data-label={one.label} className={`${one.align ?? ""}${one.grow ? " grow" : ""}`}>{one.cell(row)}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export const MoreButton = ({ hasMore, isLoading, more, what = "Show more" }: { hasMore: boolean; isLoading: boolean; more: () => void; what?: string }) =>
  hasMore && <p className="more"><button type="button" className="button" disabled={isLoading} onClick={more}>{what}</button></p>;

/** Tabs as links. The arrow keys move between them. */
export function Tabs({ label, tabs, current }: { label: string; tabs: { name: string; label: ReactNode; href: string }[]; current: string }) {
  const onKey = (event: KeyboardEvent<HTMLElement>) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const all = [...event.currentTarget.querySelectorAll("a")];
    const at = all.indexOf(document.activeElement as HTMLAnchorElement);
    all[(at + step + all.length) % all.length]?.focus();
    event.preventDefault();
  };
  const list = useRef<HTMLElement>(null);
  useEffect(() => void list.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [current]);
  return (
    <nav className="tabs" aria-label={label} onKeyDown={onKey} ref={list}>
      {tabs.map(({ name, label, href }) => <a key={name} href={href} aria-current={name === current ? "page" : undefined}>{label}</a>)}
    </nav>
  );
}

/** A field with its label. */
export function Field({ label, unseen = false, children }: { label: string; unseen?: boolean; children: (id: string) => ReactNode }) {
  const id = useId();
  return <div className="field"><label htmlFor={id} className={unseen ? "unseen" : ""}>{label}</label>{children(id)}</div>;
}
