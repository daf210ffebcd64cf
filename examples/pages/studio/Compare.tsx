// What differs between two agents, or two pieces of work: their spans side by side.

import { type ReactNode, useMemo, useState } from "react";
import { CompareAgents } from "./CompareAgents";
import { dollars, duration, shortTime } from "./format";
import { useAnswer, useNow } from "./hooks";
import { AgentName, type Column, ErrorNote, Loading, Nothing, StatusBadge, Table, Title } from "./parts";
import { link, useRoute } from "./route";
import { isRetry, kindOf, nameOfWork, type SpanRow, titleOf } from "./spans";
import { type Timeline, useTimeline } from "./timelines";
import type { Page, Work } from "./types";

type Side = SpanRow & { took: number };
type Pair = { key: string; depth: number; a: Side | null; b: Side | null; differs: boolean };

const RATIO = 1.5;
const NOTICEABLE = 0.05;

export default function Compare() {
  const { query } = useRoute();
  const [a, aw, b, bw] = ["a", "aw", "b", "bw"].map((name) => query.get(name) ?? "");
  if (a && !aw && !bw) return <CompareAgents key={`${a} ${b}`} a={a} b={b} />;
  if (!a || !aw || !b || !bw) return <><Title title="Compare" /><Nothing title="Choose what to compare">An agent is compared with another one: <strong>Compare</strong>. The timeline of a turn or run has a list of others: <strong>Compare with …</strong> <a href="#/agents">Choose an agent</a></Nothing></>;
  return <Pairs a={a} aw={aw} b={b} bw={bw} />;
}

function Pairs({ a, aw, b, bw }: { a: string; aw: string; b: string; bw: string }) {
  const first = useTimeline(a, aw);
  const second = useTimeline(b, bw);
  const [onlyDifferent, setOnly] = useState(false);
  const now = useNow(5000);
  const pairs = useMemo(() => paired(sides(first, a, aw, now), sides(second, b, bw, now)), [first.spans, first.isWhole, second.spans, second.isWhole, now]);
  const shown = onlyDifferent ? pairs.filter(({ differs }) => differs) : pairs;
  const error = first.error ?? second.error;
  const columns: Column<Pair>[] = [
    { key: "what", label: "What", grow: true, cell: ({ a, b, depth }) => <What row={(a ?? b)!} depth={depth} /> },
    { key: "a", label: "First", cell: (pair) => <Took row={pair.a} other={pair.b} /> },
    { key: "b", label: "Second", cell: (pair) => <Took row={pair.b} other={pair.a} /> },
    { key: "difference", label: "Difference", align: "end", cell: difference },
    { key: "tokens", label: "Tokens out", align: "end", cell: ({ a, b }) => change(a?.span.facts.output_tokens, b?.span.facts.output_tokens) },
  ];
  return (
    <>
      <Title title="Compare" actions={<label className="check"><input type="checkbox" checked={onlyDifferent} onChange={(event) => setOnly(event.target.checked)} /> Only differences</label>} />
      {error && <ErrorNote error={error} />}
      <div className="figures">{[[first, a, aw, "First"] as const, [second, b, bw, "Second"] as const].map(([one, address, work, name]) => <Head key={name} timeline={one} address={address} work={work} name={name} now={now} />)}</div>
      {!error && !(first.isWhole && second.isWhole) && <Loading what="Loading the records" />}
      {first.isWhole && second.isWhole && !shown.length && <Nothing title={pairs.length ? "They do not differ" : "There are no records"}>{pairs.length ? "All steps, calls and runs are the same, and took about as long." : "They are older than the class keeps them."}</Nothing>}
      {shown.length > 0 && <Table label="Spans of both" columns={columns} rows={shown.slice(0, 1000)} id={(pair) => pair.key} />}
      {shown.length > 1000 && <p className="note">The first 1,000 of {shown.length} rows are shown.</p>}
    </>
  );
}

function useGiven(address: string, work: string): Work | undefined {
  return useAnswer<Page<Work>>("works", address && work ? { address, work } : null).data?.rows[0];
}

function Head({ timeline: { root, spans }, address, work, name, now }: { timeline: Timeline; address: string; work: string; name: string; now: number }) {
  const given = useGiven(address, work);
  const all = spans ? [...spans.agents.values()].flatMap((agent) => agent.spans) : [];
  const cost = all.reduce((sum, one) => sum + Number(one.facts.nanodollars ?? 0), 0);
  return (
    <div>
      <p className="muted">{name}: <AgentName address={address} /></p>
      {root && <p><a href={link(["t", address, work])}><strong>{given ? nameOfWork(given) : titleOf(root)}</strong></a> <StatusBadge status={root.status} /></p>}
      {root && <p className="muted">{shortTime(root.began_at)}, {duration((root.ended_at ?? now) - root.began_at)}, {all.length} records{cost ? `, ${dollars(cost)}` : ""}</p>}
    </div>
  );
}

const What = ({ row, depth }: { row: Side; depth: number }) => (
  <span style={{ paddingLeft: `${depth}rem` }}><span className="muted">{kindOf(row.span)} </span>{row.span.kind === "turn" ? "Turn" : titleOf(row.span)}{row.span.kind === "step" && <span className="muted"> {row.span.name}</span>}{isRetry(row.span) && <span className="attempt">attempt {row.span.attempt}</span>}</span>
);

function Took({ row, other }: { row: Side | null; other: Side | null }): ReactNode {
  if (!row) return <span className="muted">–</span>;
  const isOther = other !== null && other.span.status !== row.span.status;
  return <>{duration(row.took)}{(isOther || row.span.status === "failed") && <> <StatusBadge status={row.span.status} /></>}{!other && <span className="only"> only here</span>}</>;
}

function difference({ a, b }: Pair): ReactNode {
  if (!a || !b) return "";
  const more = b.took - a.took;
  if (Math.abs(more) < 0.001) return "–";
  return `${more > 0 ? "+" : "−"}${duration(Math.abs(more))}`;
}

function change(a: unknown, b: unknown): ReactNode {
  if (a === undefined && b === undefined) return "";
  return a === b ? String(a) : `${a ?? "–"} → ${b ?? "–"}`;
}

function sides({ spans }: Timeline, address: string, work: string, now: number): Side[] {
  const rows = spans?.rows(address, work, new Set()) ?? [];
  return rows.flatMap((row) => (row.kind === "span" ? [{ ...row, took: (row.end ?? now) - row.span.began_at }] : []));
}

/** Rows that are the same step, call or run of both, and those that only one has, in order. */
function paired(first: Side[], second: Side[]): Pair[] {
  const keysOfFirst = keyed(first);
  const keysOfSecond = keyed(second);
  const inSecond = new Map(keysOfSecond.map((key, at) => [key, at]));
  const inFirst = new Set(keysOfFirst);
  const pairs: Pair[] = [];
  let next = 0;
  const addSecond = (to: number) => {
    for (; next < to; next++) if (!inFirst.has(keysOfSecond[next])) pairs.push({ key: keysOfSecond[next], depth: second[next].depth, a: null, b: second[next], differs: true });
  };
  first.forEach((a, at) => {
    const key = keysOfFirst[at];
    const place = inSecond.get(key);
    if (place !== undefined) addSecond(place);
    const b = place === undefined ? null : second[place];
    pairs.push({ key, depth: a.depth, a, b, differs: !b || isDifferent(a, b) });
    if (place !== undefined) next = Math.max(next, place + 1);
  });
  addSecond(second.length);
  return pairs;
}

/** What a row is called, in what, and the how manyth it is there. */
function keyed(rows: Side[]): string[] {
  const path: string[] = [];
  const seen = new Map<string, number>();
  return rows.map(({ span, depth }) => {
    path.length = depth;
    const own = `${span.kind}:${span.kind === "turn" ? "" : span.name}:${span.step ?? ""}:${span.attempt}`;
    const base = [...path, own].join("\n");
    const number = (seen.get(base) ?? 0) + 1;
    seen.set(base, number);
    path[depth] = `${own}#${number}`;
    return `${base}#${number}`;
  });
}

function isDifferent(a: Side, b: Side): boolean {
  const [less, more] = a.took < b.took ? [a.took, b.took] : [b.took, a.took];
  return a.span.status !== b.span.status || (more - less > NOTICEABLE && more > RATIO * less) || a.span.facts.output_tokens !== b.span.facts.output_tokens;
}
