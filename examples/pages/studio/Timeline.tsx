// Where the time of a piece of work went: all agents that took part, on one axis.

import { type CSSProperties, type KeyboardEvent, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { Turn } from "../design/icons";
import { CompareWith } from "./CompareWith";
import { CopyTest } from "./CopyTest";
import { clock, count, dollars, duration, plural, segments } from "./format";
import { useAnswer, useNow } from "./hooks";
import { AgentPath, ErrorNote, Loading, Nothing, StatusBadge, Time } from "./parts";
import { agentLink, replaceQuery, useRoute } from "./route";
import { SpanDetail } from "./SpanDetail";
import { Axis, isBad, isOver, isRetry, kindOf, kindOfWork, nameOfWork, type SpanRow, type TimelineRow, titleOf } from "./spans";
import { useTimeline } from "./timelines";
import type { Page, Work } from "./types";
import { VirtualList } from "./VirtualList";

const HEIGHT = 30;

export default function TimelineScreen() {
  const { path } = useRoute();
  return <Loaded key={`${path[1]} ${path[2]}`} address={path[1] ?? ""} work={path[2] ?? ""} />;
}

function Loaded({ address, work }: { address: string; work: string }) {
  const { query } = useRoute();
  const onlyFailed = query.get("failed") === "1";
  const { spans, root, isWhole, hasMore, error, reload } = useTimeline(address, work);
  const [closed, setClosed] = useState<ReadonlySet<string>>(new Set());
  const [chosen, choose] = useState<SpanRow | null>(null);
  const given = useAnswer<Page<Work>>("works", { address, work }).data?.rows[0];
  const isLive = root !== null && !isOver(root);
  const now = useNow(isLive ? 1000 : null);
  const rows = useMemo(() => spans?.rows(address, work, closed) ?? [], [spans, spans?.count, closed]);
  const shown = useMemo(() => (onlyFailed ? rows.filter((row) => row.kind === "gap" || isBad(row.span) || row.span.attempt > 1) : rows), [rows, onlyFailed]);
  const toggle = (key: string) => setClosed((old) => {
    const next = new Set(old);
    if (!next.delete(key)) next.add(key);
    return next;
  });
  return (
    <>
      <div className="agent-head">
        <AgentPath above={segments(address)}><a href={agentLink(address, "timeline")}>Timeline</a></AgentPath>
        <div className="title">
          <div className="title-text">
            <h1>{given ? nameOfWork(given, 160) : root ? titleOf(root) : "Timeline"}</h1>
            {root && <p className="about"><StatusBadge status={root.status} /><span className="muted">began <Time at={root.began_at} /></span>{given && <span className="muted" title={work}>{kindOfWork(root)}</span>}</p>}
          </div>
          <div className="actions">
            <label className="check"><input type="checkbox" checked={onlyFailed} onChange={(event) => replaceQuery(["t", address, work], { failed: event.target.checked ? "1" : "" })} /> Only failures</label>
            {root?.kind === "turn" && isOver(root) && <CopyTest address={address} turn={work} />}
            {root && <CompareWith address={address} work={work} />}
          </div>
        </div>
      </div>
      {error && <ErrorNote error={error} onRetry={reload} />}
      {!spans && !error && <Loading what="Loading the records" />}
      {isWhole && !rows.length && <Nothing title="There are no records of this work">They are older than the class keeps them, or were never written. <a href={agentLink(address, "timeline")}>See what is there</a></Nothing>}
      {rows.length > 0 && <Summary rows={rows} now={now} />}
      {rows.length > 0 && !shown.length && <Nothing title="Nothing failed">No step, tool call or run failed or was tried again.</Nothing>}
      {shown.length > 0 && <Chart rows={shown} now={now} toggle={toggle} closed={closed} onChoose={choose} />}
      {hasMore && <p className="note">There are more records than a page can show: the first 20,000 are here.</p>}
      {chosen && <SpanDetail row={chosen} start={root?.began_at ?? chosen.span.began_at} onClose={() => choose(null)} />}
    </>
  );
}

function Summary({ rows, now }: { rows: TimelineRow[]; now: number }) {
  const spans = rows.flatMap((row) => (row.kind === "span" ? [row] : []));
  const took = (kind: string) => spans.filter(({ span }) => span.kind === kind).reduce((sum, { span, end }) => sum + ((end ?? now) - span.began_at), 0);
  const fact = (name: string) => spans.reduce((sum, { span }) => sum + Number(span.facts[name] ?? 0), 0);
  const [first] = spans;
  const agents = new Set(spans.map(({ address }) => address)).size;
  const retries = spans.filter(({ span }) => span.attempt > 1).length;
  const gaps = crashes(rows);
  const found: [string, string][] = [
    ["Took", duration((first.end ?? now) - first.span.began_at)],
    ["Models", duration(took("step"))],
    ["Tools", duration(took("tool"))],
    ...(spans.some(({ span }) => span.kind === "function") ? [["Steps", duration(took("function"))] as [string, string]] : []),
    ["Waited", duration(took("wait"))],
    ["Tokens", `${count(fact("input_tokens"))} in, ${count(fact("output_tokens"))} out`],
    ...(fact("nanodollars") ? [["Cost", dollars(fact("nanodollars"))] as [string, string]] : []),
    ...(agents > 1 ? [["Agents", count(agents)] as [string, string]] : []),
    ...(retries ? [["Retries", count(retries)] as [string, string]] : []),
    ...(gaps ? [["Interrupted", plural(gaps, "time")] as [string, string]] : []),
  ];
  return <dl className="summary">{found.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>;
}

/** How often a process ended: agents that it held have gaps at the same time. */
function crashes(rows: TimelineRow[]): number {
  const gaps = rows.flatMap((row) => (row.kind === "gap" && row.isCrash ? [row] : [])).sort((a, b) => a.from - b.from);
  let [number, end] = [0, -Infinity];
  for (const { from, to } of gaps) {
    if (from > end) number++;
    end = Math.max(end, to);
  }
  return number;
}

type ChartProps = { rows: TimelineRow[]; now: number; toggle: (key: string) => void; closed: ReadonlySet<string>; onChoose: (row: SpanRow) => void };

function Chart({ rows, now, toggle, closed, onChoose }: ChartProps) {
  const [active, setActive] = useState(0);
  const [width, setWidth] = useState(0);
  const ruler = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => setWidth(ruler.current!.clientWidth), []);
  useEffect(() => {
    const watch = new ResizeObserver(() => ruler.current && setWidth(ruler.current.clientWidth));
    watch.observe(ruler.current!);
    return () => watch.disconnect();
  }, []);
  const axis = useMemo(() => new Axis(rows, now, Math.max(width - 8, 50)), [rows, now, width]);
  const onKey = (event: KeyboardEvent, at: number): boolean => {
    const row = rows[at];
    if (row?.kind !== "span") return false;
    if (event.key === "Enter" || event.key === " ") onChoose(row);
    else if (event.key === "ArrowRight" && row.parts && closed.has(row.key)) toggle(row.key);
    else if (event.key === "ArrowLeft" && row.parts && !closed.has(row.key)) toggle(row.key);
    else if (event.key === "ArrowLeft") setActive(rows.slice(0, at).reduce((last, one, index) => (one.depth < row.depth ? index : last), 0));
    else return false;
    return true;
  };
  return (
    <div className="fills list-box timeline">
      <div className="timeline-head" aria-hidden="true">
        <span>What</span>
        <div className="ruler" ref={ruler}>
          {axis.ticks().map(({ at, time }) => <span key={time} style={{ left: at }}>{time ? duration(time) : "0"}</span>)}
          {axis.folds.filter(({ isLabeled }) => isLabeled).map((fold) => <span key={fold.from} className="fold-label" style={{ left: fold.at + fold.width / 2 }} title={`Nothing happened for ${duration(fold.to - fold.from)}`}>{duration(fold.to - fold.from)}</span>)}
        </div>
      </div>
      <div className="timeline-body">
        <div className="grid" aria-hidden="true">
          {axis.ticks().map(({ at, time }) => <i key={time} style={{ left: at }} />)}
          {axis.folds.map((fold) => <b key={fold.from} style={{ left: fold.at, width: fold.width }} />)}
        </div>
        <VirtualList label="Timeline" role="tree" count={rows.length} height={HEIGHT} active={active} onActive={setActive} onKey={onKey} idOf={(at) => `span-${at}`}>
          {(at, style) => <Line key={rows[at].key} row={rows[at]} at={at} style={style} axis={axis} now={now} isActive={at === active} isClosed={closed.has(rows[at].key)} onToggle={() => toggle(rows[at].key)} onChoose={onChoose} />}
        </VirtualList>
      </div>
    </div>
  );
}

type LineProps = { row: TimelineRow; at: number; style: CSSProperties; axis: Axis; now: number; isActive: boolean; isClosed: boolean; onToggle: () => void; onChoose: (row: SpanRow) => void };

function Line({ row, at, style, axis, now, isActive, isClosed, onToggle, onChoose }: LineProps) {
  const props = { id: `span-${at}`, role: "treeitem", style, "aria-level": row.depth + 1, "aria-selected": isActive };
  const indent = { paddingLeft: `${0.3 + 0.95 * row.depth}rem` };
  if (row.kind === "gap") {
    const [left, right] = [axis.x(row.from), axis.x(row.to)];
    const text = `${row.isCrash ? "process ended" : "asleep, or process ended"}, ${duration(row.to - row.from)}`;
    return (
      <div {...props} className={`span-line is-gap${row.isCrash ? " is-crash" : ""}${isActive ? " is-active" : ""}`}>
        <span className="span-label" style={indent}><span className="twist" /><span className="span-name">{text}</span></span>
        <span className="span-bars"><span className="gap" style={{ left, width: Math.max(right - left, 3) }} title={`${text}. It went on at ${clock(row.to)}, version ${row.incarnation.version}`} /></span>
      </div>
    );
  }
  const { span } = row;
  const end = row.end ?? now;
  const took = duration(end - span.began_at);
  const tone = isBad(span) ? "is-bad" : span.status === "cancelled" || span.status === "skipped" ? "is-cancelled" : "";
  return (
    <div {...props} className={`span-line ${tone}${isActive ? " is-active" : ""}`} aria-expanded={row.parts ? !isClosed : undefined} onClick={() => onChoose(row)}>
      <span className="span-label" style={indent}>
        {row.parts ? <button type="button" className={`twist${isClosed ? "" : " is-open"}`} tabIndex={-1} aria-hidden="true" onClick={(event) => (event.stopPropagation(), onToggle())}><Turn /></button> : <span className="twist" />}
        <span className="span-name" title={`${titleOf(span)}, ${span.status}, ${took}`}>
          <span className={`kind is-${span.kind}`}>{kindOf(span)}</span> {titleOf(span)}
          {span.kind === "step" && <span className="muted"> {span.name}</span>}
          {span.kind === "wait" && Boolean(span.facts.tool) && <span className="muted"> {String(span.facts.tool)}</span>}
          {span.kind === "remote" && typeof span.facts.url === "string" && <span className="muted"> {span.facts.url}</span>}
          {isRetry(span) && <span className="attempt"> <span className="attempt-word">attempt </span>{span.attempt}</span>}
          <span className="unseen">, {span.status}{row.isCut ? "" : `, ${took}`}</span>
        </span>
      </span>
      <span className="span-bars" aria-hidden="true"><Bars row={row} end={end} axis={axis} took={took} /></span>
    </div>
  );
}

function Bars({ row, end, axis, took }: { row: SpanRow; end: number; axis: Axis; took: string }) {
  const { span } = row;
  const left = axis.x(span.began_at);
  const width = span.kind === "milestone" ? 10 : Math.max(axis.x(end) - left, 2);
  const first = span.kind === "step" && span.first_at !== null ? axis.x(span.first_at) - left : null;
  const isLate = left + width > axis.width - 64;
  const label = span.kind === "milestone" ? "" : row.isCut ? span.status : isBad(span) ? `${span.status}, ${took}` : isOver(span) ? took : `${span.status === "waiting" || span.kind === "wait" ? "waits" : "runs"}, ${took}`;
  return (
    <>
      <span className={`bar-span is-${span.kind}${isOver(span) ? "" : " is-live"}`} style={{ left, width }}>
        {first !== null && <span className="until-first" style={{ width: Math.min(first, width) }} title="Until the first chunk arrived" />}
      </span>
      {isLate && left > 90 ? <span className="took" style={{ right: `calc(100% - ${left - 6}px)` }}>{label}</span> : isLate ? <span className="took is-inside" style={{ left: left + 8 }}>{label}</span> : <span className="took" style={{ left: left + width + 6 }}>{label}</span>}
    </>
  );
}
