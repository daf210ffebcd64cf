// Spans as a tree of rows on one axis: turn, step, tool, wait, and the runs of sub-agents with rows of their own.

import { duration, segments } from "./format";
import type { Address, Incarnation, Span, SpanBatch, Work } from "./types";

export const isOver = ({ status }: Span) => status !== "running" && status !== "waiting";
export const isBad = ({ status }: Span) => status === "failed" || status === "interrupted";

/** The id of the turn that a span is part of. */
export const turnId = ({ work }: Span) => work.replace(/^run /, "");

/** A span in words. */
export function titleOf(span: Span): string {
  if (span.kind === "turn" && span.facts.run) return "Turn"; // the row of the run is above it
  if (span.kind === "turn") return `Turn ${turnId(span).replace(/^turn-/, "")}`;
  if (span.kind === "step") return span.step === null || span.step === 0 ? "Summary" : `Step ${span.step}`;
  if (span.kind === "remote") return "Remote run";
  if (span.kind === "attempt") return `Attempt ${span.attempt}`;
  return span.name;
}

/** The kind of a span in words, where its title does not say it. */
export function kindOf({ kind }: Span): string {
  return { turn: "", step: "", remote: "", attempt: "", function: "step" }[kind as string] ?? kind;
}

/** Whether the attempt is worth a word: not where it is in the title. */
export const isRetry = (span: Span) => span.attempt > 1 && span.kind !== "attempt";

/** What a turn, run or call was given, shortened; else what it is called. */
export function nameOfWork(work: Work, most = 80): string {
  const { input } = work;
  const text = typeof input === "string" ? (input.length > most ? `${input.slice(0, most).trimEnd()}…` : input) : "";
  if (!text || work.kind === "fiber") return titleOf(work);
  return work.kind === "call" ? `${work.name}(${text})` : text;
}

/** What kind of work it is: a turn with its id, as logs and commands name it. */
export const kindOfWork = (work: Span) => (work.kind === "turn" ? titleOf(work).replace("Turn", "turn") : work.kind === "remote" ? "remote run" : work.kind);

export type Gap = { kind: "gap"; address: Address; from: number; to: number; incarnation: Incarnation; isCrash: boolean };
export type SpanRow = { kind: "span"; key: string; address: Address; span: Span; depth: number; end: number | null; isCut: boolean; parts: number };
export type TimelineRow = SpanRow | (Gap & { key: string; depth: number });

type Agent = { spans: Span[]; works: Map<string, Span[]>; incarnations: Map<number, Incarnation> };

/** The spans of some agents, as they arrive. */
export class Spans {
  readonly agents = new Map<Address, Agent>();
  private readonly children = new Map<string, Address>();
  count = 0;

  add({ address, spans, incarnations }: SpanBatch): void {
    const agent: Agent = this.agents.get(address) ?? { spans: [], works: new Map(), incarnations: new Map() };
    for (const span of spans) {
      agent.spans.push(span);
      const work = agent.works.get(span.work);
      if (work) work.push(span);
      else agent.works.set(span.work, [span]);
    }
    this.count += spans.length;
    for (const one of incarnations) agent.incarnations.set(one.number, one);
    this.agents.set(address, agent);
    const last = segments(address).at(-1)!;
    this.children.set(`${address.slice(0, address.lastIndexOf("/"))} ${last.type}:${last.name}`, address);
  }

  /** The rows of a piece of work, with what its sub-agents did for it. */
  rows(address: Address, work: string, closed: ReadonlySet<string>): TimelineRow[] {
    const rows: TimelineRow[] = [];
    this.gather(rows, address, work, 0, closed, new Set());
    return rows;
  }

  private gather(rows: TimelineRow[], address: Address, work: string, depth: number, closed: ReadonlySet<string>, seen: Set<Address>): void {
    const agent = this.agents.get(address);
    if (!agent || seen.has(address)) return;
    const inside = new Set(seen).add(address);
    const own = agent.works.get(work) ?? [];
    const children = new Map<number | null, Span[]>();
    const numbers = new Set(own.map(({ number }) => number));
    for (const span of own) {
      const parent = span.parent !== null && numbers.has(span.parent) ? span.parent : null;
      const siblings = children.get(parent);
      if (siblings) siblings.push(span);
      else children.set(parent, [span]);
    }
    const last = own.reduce((most, one) => Math.max(most, one.incarnation), 0);
    let incarnation: number | null = null;
    const visit = (span: Span, at: number) => {
      const next = agent.incarnations.get(span.incarnation);
      const between = incarnation !== null && span.incarnation > incarnation && next ? gap(address, own, incarnation, next, at) : null;
      if (between) rows.push(between);
      incarnation = Math.max(incarnation ?? 0, span.incarnation);
      const below = children.get(span.number) ?? [];
      const child = span.kind === "run" ? this.childOf(address, span) : null;
      const key = `${address} ${span.number}`;
      rows.push({ kind: "span", key, address, span, depth: at, end: endOf(span, last), isCut: isCut(span, last), parts: below.length + (child ? 1 : 0) });
      if (closed.has(key)) return;
      below.forEach((one) => visit(one, at + 1));
      if (child) this.gather(rows, child, `run ${span.facts.key}`, at + 1, closed, inside);
    };
    (children.get(null) ?? []).forEach((span) => visit(span, depth));
  }

  /** The agent that does a run, if it has records. */
  private childOf(address: Address, span: Span): Address | null {
    return this.children.get(`${address} ${span.name}:${span.facts.child}`) ?? null;
  }
}

/** Whether a crash cut a span. When is not known: an end that is recorded is the time at which the next process found it. */
function isCut(span: Span, last: number): boolean {
  return span.status === "interrupted" && (span.ended_at === null || span.incarnation < last);
}

/** When a span ended. Of one that was cut, only what was recorded before is known. */
function endOf(span: Span, last: number): number | null {
  if (isCut(span, last)) return span.first_at ?? span.began_at;
  return span.ended_at ?? (isOver(span) ? span.began_at : null);
}

/** The time between what an incarnation did last and what the next did first. */
function gap(address: Address, spans: Span[], before: number, next: Incarnation, depth: number): TimelineRow | null {
  const to = spans.reduce((first, one) => (one.incarnation === next.number ? Math.min(first, one.began_at) : first), Infinity);
  const own = spans.filter((one) => one.incarnation === before);
  const times = own.flatMap((one) => [one.began_at, one.first_at, one.status === "interrupted" ? null : one.ended_at]).filter((one): one is number => one !== null && one <= to);
  const from = Math.max(...times);
  const isCrash = own.some((one) => one.status === "interrupted");
  return to - from > (isCrash ? 0 : SHORTEST) ? { kind: "gap", key: `${address} gap ${next.number}`, address, from, to, incarnation: next, depth, isCrash } : null;
}

/** A time axis on which long stretches without anything to see are folded. */
export class Axis {
  readonly folds: { from: number; to: number; at: number; width: number; isLabeled: boolean }[] = [];
  readonly from: number;
  readonly to: number;
  private readonly scale: number;

  constructor(rows: TimelineRow[], now: number, readonly width: number) {
    const edges = rows.flatMap((row) => (row.kind === "gap" ? [row.from, row.to] : [row.span.began_at, row.end ?? now]));
    this.from = edges.reduce((a, b) => Math.min(a, b), Infinity);
    this.to = edges.reduce((a, b) => Math.max(a, b), -Infinity);
    if (!edges.length) this.from = this.to = now;
    if (this.to - this.from < 0.001) this.to = this.from + 0.001;
    const found = quiet(rows, now, this.from, this.to);
    const seconds = this.to - this.from - found.reduce((sum, one) => sum + one.to - one.from, 0);
    const labels = found.map((one) => Math.max(FOLD, widthOf(duration(one.to - one.from)) + 12));
    const areLabeled = labels.reduce((sum, one) => sum + one, 0) <= width / 2;
    const widths = areLabeled ? labels : labels.map(() => Math.min(FOLD, width / 2 / labels.length));
    this.scale = (width - widths.reduce((sum, one) => sum + one, 0)) / Math.max(seconds, 0.001);
    found.forEach((one, at) => this.folds.push({ ...one, at: this.x(one.from), width: widths[at], isLabeled: areLabeled }));
  }

  /** Where a time is, in pixels. */
  x(time: number): number {
    let folded = 0;
    let shift = 0;
    for (const { from, to, width } of this.folds) {
      if (time >= to) (folded += to - from, shift += width);
      else if (time > from) return (from - this.from - folded) * this.scale + shift + (width * (time - from)) / (to - from);
      else break;
    }
    return (time - this.from - folded) * this.scale + shift;
  }

  /** Round times for marks, so many pixels apart. */
  ticks(apart = 90): { at: number; time: number }[] {
    const wanted = apart / this.scale;
    const base = 10 ** Math.floor(Math.log10(wanted));
    const step = [1, 2, 5, 10].map((one) => one * base).find((one) => one >= wanted)!;
    const found: { at: number; time: number }[] = [];
    for (let time = 0; time <= this.to - this.from && found.length < 100; time += step) {
      const at = this.x(this.from + time);
      const end = at + widthOf(duration(time)) + 8;
      const isFree = at === 0 || (end <= this.width && !this.folds.some((fold) => end > fold.at && at < fold.at + fold.width));
      if (isFree && at - (found.at(-1)?.at ?? -apart) >= apart * 0.6) found.push({ at, time });
    }
    return found;
  }
}

const FOLD = 34;
/** About how many pixels a label has, in the small type of the ruler. */
const widthOf = (text: string) => 6.5 * text.length;
const LONGER = 5;
const SHORTEST = 1;

/** The stretches in which nothing began or ended and no model or tool worked, much longer than the others. */
function quiet(rows: TimelineRow[], now: number, from: number, to: number): { from: number; to: number }[] {
  const busy = rows.flatMap((row): [number, number][] => {
    if (row.kind === "gap") return [[row.from, row.from], [row.to, row.to]];
    const end = row.end ?? now;
    if (row.span.kind === "step" || row.span.kind === "tool") return [[row.span.began_at, row.span.status === "interrupted" ? row.span.began_at : end]];
    return [[row.span.began_at, row.span.began_at], [end, end]];
  });
  busy.sort((a, b) => a[0] - b[0]);
  const lengths = busy.map(([a, b]) => b - a).filter(Boolean).sort((a, b) => a - b);
  const median = lengths[Math.floor(lengths.length / 2)] ?? SHORTEST;
  const limit = Math.max(SHORTEST, LONGER * median, (to - from) / 50);
  const found: { from: number; to: number }[] = [];
  let last = from;
  for (const [a, b] of busy) {
    if (a - last > limit) {
      const margin = Math.min((a - last) / 10, limit / 4);
      found.push({ from: last + margin, to: a - margin });
    }
    last = Math.max(last, b);
  }
  return found;
}
