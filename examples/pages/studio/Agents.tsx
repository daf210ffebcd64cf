// Who is there, who works, who waits: the tree of all agents, or those that match a search.

import { type CSSProperties, type KeyboardEvent, useCallback, useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";
import { Turn } from "../design/icons";
import { CreateButton } from "./Act";
import { count, plural, segments } from "./format";
import { useIsVisible, useStream } from "./hooks";
import { AgentName, ErrorNote, Field, Gaps, Loading, Nothing, Shown, StatusBadge, Title } from "./parts";
import { agentLink, go, replaceQuery, useRoute } from "./route";
import { useFind } from "./search";
import { useSession } from "./session";
import { getToken } from "./token";
import { AgentTree, type Line } from "./tree";
import type { AgentRow, WatchRow } from "./types";
import { VirtualList } from "./VirtualList";

const STATUSES = ["live", "busy", "starting", "asleep", "aborted", "quarantined"];
const REFRESH = 5000;
const SETTLED = 200;
const MOST_WATCHED = 300;
const MOST_ROOTS = 6;

let kept: { token: string | null; tree: AgentTree } | null = null;

/** The tree of this tab: it is kept while an agent is shown. */
function useTree(): AgentTree {
  const token = getToken();
  if (kept?.token !== token) kept = { token, tree: new AgentTree() };
  return kept!.tree;
}

export default function Agents() {
  const { query } = useRoute();
  const { below } = useSession();
  const [text, status] = [query.get("q") ?? "", query.get("status") ?? ""];
  const setText = (q: string) => replaceQuery(["agents"], { q, status });
  const setStatus = (one: string) => replaceQuery(["agents"], { q: text, status: one });
  const isSearch = Boolean(text.trim() || status);
  return (
    <>
      <Title title="Agents">{below !== null && <p className="muted">The token is limited to <AgentName address={below} /> and agents below it.</p>}</Title>
      <form className="row search" role="search" onSubmit={(event) => event.preventDefault()}>
        <Field label="Find agents" unseen>{(id) => <input id={id} type="search" value={text} placeholder="Find by type or name" autoComplete="off" spellCheck={false} onChange={(event) => setText(event.target.value)} />}</Field>
        <Field label="Status" unseen>{(id) => (
          <select id={id} value={status} onChange={(event) => setStatus(event.target.value)}>
            <option value="">Any status</option>
            {STATUSES.map((one) => <option key={one}>{one}</option>)}
          </select>
        )}</Field>
      </form>
      {isSearch ? <Found text={text.trim()} status={status} /> : <Tree />}
    </>
  );
}

const LABELS = ["Agent", "Status", "Calls", "Clients", "Children"];

/** Watch the agents on the screen, once scrolling has stopped. */
function useWatch(addresses: string[], onRows: (rows: WatchRow[]) => void) {
  const key = addresses.slice(0, MOST_WATCHED).join("\n");
  const [settled, setSettled] = useState("");
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(key), settled ? SETTLED : 0);
    return () => window.clearTimeout(timer);
  }, [key]);
  return useStream("watch", settled ? { addresses: settled.split("\n") } : null, ({ data }) => onRows(data.rows));
}

function Tree() {
  const tree = useTree();
  const { below } = useSession();
  useSyncExternalStore(tree.subscribe, tree.snapshot);
  const { lines, top } = tree;
  const [active, setActive] = useState(0);
  const [range, setRange] = useState<[number, number]>([0, 40]);
  const shown = lines.slice(...range);
  const isVisible = useIsVisible();
  const error = useWatch(shown.filter(({ kind }) => kind === "agent").map(({ node }) => node.row.address), (rows) => tree.apply(rows));

  useEffect(() => void (top.pages.length ? null : tree.load(top)), [tree]);
  useEffect(() => {
    for (const { kind, node } of shown) if (kind === "more" && node.pages.length) void tree.load(node);
  }, [range, lines]);
  const pages = useRef<number[]>([]);
  pages.current = useMemo(() => {
    const roots = new Set(shown.filter(({ node }) => node.parent === top).map(({ node }) => node));
    return top.pages.flatMap((page, at) => (page.nodes.some((node) => roots.has(node)) || (at === top.pages.length - 1 && !roots.size) ? [at] : []));
  }, [range, lines]);
  useEffect(() => {
    if (!isVisible) return;
    const timer = window.setInterval(() => void (async () => { for (const at of pages.current) await tree.refresh(top, at); })(), REFRESH);
    return () => window.clearInterval(timer);
  }, [tree, isVisible]);

  const onRange = useCallback((from: number, to: number) => setRange(([a, b]) => (a === from && b === to ? [a, b] : [from, to])), []);
  const toggle = (line: Line) => (line.node.isOpen ? tree.close(line.node) : void tree.open(line.node));
  const onKey = (event: KeyboardEvent, index: number): boolean => {
    const line = lines[index];
    if (!line) return false;
    if (line.kind === "error" && event.key === "Enter") void tree.load(line.node);
    if (line.kind !== "agent") return event.key === "Enter";
    const isParent = line.node.children !== 0;
    if (event.key === "Enter") go(agentLink(line.node.row.address));
    else if (event.key === "ArrowRight" && isParent) line.node.isOpen ? setActive(Math.min(index + 1, lines.length - 1)) : void tree.open(line.node);
    else if (event.key === "ArrowLeft") {
      if (line.node.isOpen) tree.close(line.node);
      else if (line.node.parent !== top) setActive(lines.findIndex(({ node, kind }) => kind === "agent" && node === line.node.parent));
    } else if (event.key !== " " || !isParent) return false;
    else toggle(line);
    return true;
  };

  if (!top.pages.length) return top.error ? <ErrorNote error={top.error} onRetry={() => void tree.load(top)} /> : <Loading what="Loading the agents" />;
  if (!lines.length && below !== null) return <Nothing title="No children">Below this agent there are none.</Nothing>;
  if (!lines.length) return <Nothing title="There are no agents yet">An agent is created by the first client, call or page that names it.<Roots /></Nothing>;
  return (
    <>
      <div className="fills list-box">
        <Heads note={<>{below === null ? plural(top.total ?? 0, "root") : plural(top.total ?? 0, "child", "children")}</>} />
        <VirtualList
          label="Agents" role="tree" count={lines.length} height={36} active={active} onActive={setActive} onKey={onKey} onRange={onRange} idOf={(at) => `line-${at}`}
        >
          {(at, style) => <TreeLine key={at} line={lines[at]} at={at} style={style} isActive={at === active} onToggle={() => (setActive(at), toggle(lines[at]))} onRetry={() => void tree.load(lines[at].node)} />}
        </VirtualList>
      </div>
      {error && <ErrorNote error={error} />}
      <Gaps unanswered={tree.unanswered} />
    </>
  );
}

const Heads = ({ note }: { note: React.ReactNode }) => (
  <div className="agent-line is-head" aria-hidden="true">{LABELS.map((one, at) => <span key={one}>{one}{at === 0 && <span className="muted list-note"> · {note}</span>}</span>)}</div>
);

/** Buttons for roots that can be created. */
function Roots() {
  const { roots } = useSession();
  return <span className="nothing-act">{roots.slice(0, MOST_ROOTS).map((type) => <CreateButton key={type} address={`${type}:main`} />)}</span>;
}

type TreeLineProps = { line: Line; at: number; style: CSSProperties; isActive: boolean; onToggle: () => void; onRetry: () => void };

function TreeLine({ line, at, style, isActive, onToggle, onRetry }: TreeLineProps) {
  const { node, kind } = line;
  const indent = { paddingLeft: `${0.5 + 1.2 * (kind === "agent" ? node.depth : node.depth + 1)}rem` };
  const props = { id: `line-${at}`, role: "treeitem", style: { ...style, ...indent }, className: `agent-line${isActive ? " is-active" : ""}` };
  const level = { "aria-level": (kind === "agent" ? node.depth : node.depth + 1) + 1, "aria-selected": isActive };
  if (kind === "more") return <div {...props} {...level}><span className="muted">Loading …</span></div>;
  if (kind === "none") return <div {...props} {...level}><span className="muted">No children</span></div>;
  if (kind === "error") return <div {...props} {...level}><span className="line-error"><span>{node.error!.message}</span> <button type="button" className="button is-small" tabIndex={-1} onClick={onRetry}>Try again</button></span></div>;
  const isParent = node.children !== 0;
  return (
    <div {...props} {...level} aria-posinset={line.position} aria-setsize={node.parent!.total ?? -1} aria-expanded={isParent ? node.isOpen : undefined} data-address={node.row.address}>
      <span className="agent-cell">
        {isParent ? <button type="button" className={`twist${node.isOpen ? " is-open" : ""}`} tabIndex={-1} aria-hidden="true" onClick={onToggle}><Turn /></button> : <span className="twist" />}
        <a className="agent-name" href={agentLink(node.row.address)} tabIndex={-1} title={node.row.address}><span className="type">{node.row.type}</span> <span className="name">{node.row.name}</span></a>
      </span>
      <Facts row={node.row} children={node.children} />
    </div>
  );
}

const number = (value: number | null) => (value === null ? "" : value === 0 ? "–" : count(value));

function Facts({ row, children }: { row: AgentRow; children: number | null }) {
  return (
    <>
      <span className="agent-status">
        {row.status === "asleep" ? <span className="muted">asleep</span> : <StatusBadge status={row.status} />}
        {Boolean(row.asks) && <StatusBadge status="asks">{plural(row.asks!, "question")}</StatusBadge>}
        {row.dead > 0 && <StatusBadge status="dead">{plural(row.dead, "dead letter")}</StatusBadge>}
        {row.last_error && <span className="agent-error"><Shown value={row.last_error}>{(text) => <span title={text}>{text}</span>}</Shown></span>}
      </span>
      <span className="end" data-unit="calls">{number(row.calls)}</span>
      <span className="end" data-unit="clients">{number(row.sockets)}</span>
      <span className="end" data-unit="children">{number(children)}</span>
    </>
  );
}

function Found({ text, status }: { text: string; status: string }) {
  const { rows, end, error, retry } = useFind(text, status);
  const [active, setActive] = useState(0);
  const [range, setRange] = useState<[number, number]>([0, 40]);
  const [live, setLive] = useState<Record<string, WatchRow>>({});
  useWatch(rows.slice(...range).map(({ address }) => address), (changed) => setLive((old) => ({ ...old, ...Object.fromEntries(changed.map((row) => [row.address, row])) })));
  const onRange = useCallback((from: number, to: number) => setRange([from, to]), []);
  const note = end ? <>{count(rows.length)}{end.more ? "+" : ""} of {plural(end.searched, "agent")}</> : <>searching …</>;
  if (error) return <ErrorNote error={error} onRetry={retry} />;
  if (end && !rows.length) return <><Nothing title="No agent matches">Searched {plural(end.searched, "agent")}. The text is compared with <code>Type:name</code>, or with the whole address if it contains a slash.</Nothing><Gaps unanswered={end.unanswered} /></>;
  return (
    <>
      <p className="unseen" role="status">{note}</p>
      <div className="fills list-box">
        <Heads note={note} />
        <VirtualList label="Agents that match" role="tree" count={rows.length} height={36} active={active} onActive={setActive} onRange={onRange} idOf={(at) => `line-${at}`} onKey={(event, at) => event.key === "Enter" && Boolean(rows[at]) && (go(agentLink(rows[at].address)), true)}>
          {(at, style) => {
            const changed = live[rows[at].address];
            const row = { ...rows[at], ...changed, status: changed?.status === "gone" ? "aborted" as const : changed?.status ?? rows[at].status };
            const above = segments(row.address).slice(0, -1);
            return (
              <div key={row.address} id={`line-${at}`} role="treeitem" aria-level={1} aria-selected={at === active} className={`agent-line is-found${at === active ? " is-active" : ""}`} style={style} data-address={row.address}>
                <span className="agent-cell"><a className="agent-name" href={agentLink(row.address)} tabIndex={-1} title={row.address}>{above.map((one) => <span key={one.address} className="above">{one.type} {one.name} / </span>)}<span className="type">{row.type}</span> <span className="name">{row.name}</span></a></span>
                <Facts row={row} children={changed?.children ?? row.children} />
              </div>
            );
          }}
        </VirtualList>
      </div>
      {end?.more && <p className="note">There are more. Type more of the name.</p>}
      <Gaps unanswered={end?.unanswered} />
    </>
  );
}
