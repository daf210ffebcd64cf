// What was used of models in a time: a chart by hour or day, and a table by model, class or user.

import { type ReactNode, useMemo } from "react";
import { count, dollars, plural, shortTime } from "./format";
import { useAnswer, useNow } from "./hooks";
import { type Column, ErrorNote, Field, Gaps, Loading, Nothing, Shown, Table } from "./parts";
import { replaceQuery, useRoute } from "./route";
import { costOf, Figures, numbers, totalOf, Trees, weightOf } from "./SpendingTables";
import type { Content, Spent, SpendingResult } from "./types";

const HOUR = 3600;
const EVERY = 15_000;
const SHOWN = 100;
const TIMES: Record<string, { label: string; hours: number; bar: number }> = {
  day: { label: "Last 24 hours", hours: 24, bar: 1 },
  week: { label: "Last 7 days", hours: 7 * 24, bar: 6 },
  month: { label: "Last 30 days", hours: 30 * 24, bar: 24 },
  quarter: { label: "Last 92 days", hours: 92 * 24, bar: 48 },
};
const GROUPS: Record<string, string> = { model: "Model", class: "Class", user: "User" };

type HourRow = Spent & { hour: number };
type GroupRow = Spent & { model?: string; class?: string; user?: Content<string> | null };

/** The choice of a time, kept in the URL; without one, everything since the agents were made is counted. */
export function TimeChoice({ isRoot }: { isRoot: boolean }) {
  const { path, query } = useRoute();
  const [time, by] = [query.get("time") ?? "", groupIn(query)];
  if (!isRoot) return null;
  return (
    <div className="row">
      <Field label="Time" unseen>{(id) => (
        <select id={id} value={time} onChange={(event) => replaceQuery(path, { time: event.target.value, by })}>
          <option value="">Since the beginning</option>
          {Object.entries(TIMES).map(([name, { label }]) => <option key={name} value={name}>{label}</option>)}
        </select>
      )}</Field>
      {time && <Field label="Group" unseen>{(id) => (
        <select id={id} value={by} onChange={(event) => replaceQuery(path, { time, by: event.target.value })}>
          {Object.keys(GROUPS).map((name) => <option key={name} value={name}>{`By ${name}`}</option>)}
        </select>
      )}</Field>}
    </div>
  );
}

/** The time that is chosen, if it is one. */
export const timeIn = (query: URLSearchParams) => TIMES[query.get("time") ?? ""];

const groupIn = (query: URLSearchParams) => Object.keys(GROUPS).find((name) => name === query.get("by")) ?? "model";

export default function SpendingHours({ address }: { address?: string }) {
  const { query } = useRoute();
  const { hours, bar, label } = timeIn(query)!;
  const by = groupIn(query);
  const next = Math.floor(useNow(30_000) / HOUR + 1) * HOUR;
  const span = { address, from: next - hours * HOUR, to: next - 1 };
  const { data, error, reload } = useAnswer<SpendingResult>("spending", { ...span, by: ["hour"], limit: 50 }, EVERY);
  const groups = useAnswer<SpendingResult & { more: boolean }>("spending", { ...span, by: [by], limit: 1 }, EVERY);
  if (!data) return error ? <ErrorNote error={error} onRetry={reload} /> : <Loading what="Adding up" />;
  const rows = data.rows as unknown as HourRow[];
  if (!rows.length) return <Nothing title="No model was used in this time">Requests to models are counted in the hour in which they ended.</Nothing>;
  const found = [...((groups.data?.rows ?? []) as unknown as GroupRow[])].sort((a, b) => b.nanodollars - a.nanodollars || weightOf(b) - weightOf(a));
  const all = found.reduce((one, row) => one + weightOf(row), 0);
  const columns: Column<GroupRow>[] = [{ key: "group", label: GROUPS[by], grow: true, cell: (row) => <strong>{nameOf(row, by)}</strong> }, ...numbers<GroupRow>(all)];
  return (
    <>
      {(error ?? groups.error) && <ErrorNote error={(error ?? groups.error)!} />}
      <Figures total={totalOf(rows)} />
      <Bars rows={rows} from={span.from} to={next} hours={bar} label={label} />
      {found.length > 0 && <section aria-labelledby="by-group"><h2 id="by-group">By {by}</h2><Table label={`By ${by}`} columns={columns} rows={found.slice(0, SHOWN)} id={(row) => JSON.stringify([row.model, row.class, row.user])} /></section>}
      {(found.length > SHOWN || groups.data?.more) && <p className="note">The {SHOWN} most expensive of {count(found.length)}{groups.data?.more ? "+" : ""} are shown.</p>}
      {!address && <Trees data={data} />}
      <Gaps unanswered={data.unanswered} unread={data.unread} />
    </>
  );
}

function nameOf(row: GroupRow, by: string): ReactNode {
  if (by === "model") return row.model || "unknown model";
  if (by === "class") return row.class || "deleted agents";
  return row.user ? <Shown value={row.user}>{(text) => <>{text}</>}</Shown> : <span className="muted">no user</span>;
}

type Bar = Spent & { from: number; to: number };

/** One bar for so many hours each. The same numbers are below as a table. */
function Bars({ rows, from, to, hours, label }: { rows: HourRow[]; from: number; to: number; hours: number; label: string }) {
  const bars = useMemo(() => {
    const size = hours * HOUR;
    return Array.from({ length: Math.ceil((to - from) / size) }, (_, at): Bar => {
      const begin = from + at * size;
      return { ...totalOf(rows.filter(({ hour }) => hour >= begin && hour < begin + size)), from: begin, to: Math.min(begin + size, to) };
    });
  }, [rows, from, to, hours]);
  const isMoney = bars.some(({ nanodollars }) => nanodollars > 0);
  const value = (bar: Bar) => (isMoney ? bar.nanodollars : bar.input_tokens + bar.output_tokens);
  const text = (bar: Bar) => (isMoney ? dollars(bar.nanodollars) : plural(value(bar), "token"));
  const highest = bars.reduce((best, bar) => (value(bar) > value(best) ? bar : best), bars[0]);
  const most = Math.max(1, value(highest));
  const what = `${isMoney ? "Cost" : "Tokens"} by ${hours === 1 ? "hour" : hours === 24 ? "day" : `${hours} hours`}`;
  const used = bars.filter(({ requests }) => requests > 0);
  const columns: Column<Bar>[] = [
    { key: "from", label: "From", grow: true, cell: (bar) => shortTime(bar.from) },
    { key: "requests", label: "Requests", align: "end", cell: (bar) => count(bar.requests) },
    { key: "tokens", label: "Tokens", align: "end", cell: (bar) => count(bar.input_tokens + bar.output_tokens) },
    { key: "cost", label: "Cost", align: "end", cell: costOf },
  ];
  return (
    <section aria-labelledby="by-time">
      <h2 id="by-time">{what}</h2>
      <div className="chart">
        <div className="chart-bars" role="img" aria-label={`${what}, ${label.toLowerCase()}. The highest is ${text(highest)}, ${shortTime(highest.from)}.`}>
          {bars.map((bar) => <span key={bar.from} title={`${shortTime(bar.from)}: ${text(bar)}, ${plural(bar.requests, "request")}`}><i style={{ height: `${bar.requests ? Math.max(2, (100 * value(bar)) / most) : 0}%` }} /></span>)}
        </div>
        <p className="chart-axis muted" aria-hidden="true"><span>{shortTime(from)}</span><span>highest {text(highest)}</span><span>now</span></p>
      </div>
      <details className="chart-table"><summary>As a table</summary><Table label={what} columns={columns} rows={used} id={(bar) => String(bar.from)} /></details>
    </section>
  );
}
