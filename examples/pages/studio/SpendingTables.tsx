// What was used of models: in a time, or since the agents were made, by model and class, and by tree.

import type { ReactNode } from "react";
import { count, dollars, plural } from "./format";
import { useAnswer } from "./hooks";
import { AgentName, type Column, ErrorNote, Gaps, Loading, Nothing, Table } from "./parts";
import { useRoute } from "./route";
import SpendingHours, { TimeChoice, timeIn } from "./SpendingHours";
import type { Spent, SpendingResult } from "./types";

const EVERY = 10_000;

type ModelRow = Spent & { class: string; model: string };
type TreeRow = Spent & { address: string };

const sum = (rows: Spent[], key: keyof Spent) => rows.reduce((total, row) => total + row[key], 0);

/** The cost, or what is known of it. */
export const costOf = (row: Spent): ReactNode => (row.unpriced && !row.nanodollars ? <span className="muted">no price</span> : <>{dollars(row.nanodollars)}{row.unpriced > 0 && <span className="muted" title={`${plural(row.unpriced, "request")} without a known price`}>+</span>}</>);

export function numbers<Row extends Spent>(total: number): Column<Row>[] {
  return [
    { key: "requests", label: "Requests", align: "end", cell: (row) => count(row.requests) },
    { key: "in", label: "Tokens in", align: "end", cell: (row) => count(row.input_tokens) },
    { key: "out", label: "Tokens out", align: "end", cell: (row) => count(row.output_tokens) },
    { key: "cost", label: "Cost", align: "end", cell: (row) => costOf(row) },
    { key: "share", label: "Share", cell: (row) => <Bar share={total ? weightOf(row) / total : 0} /> },
  ];
}

export const weightOf = (row: Spent) => row.nanodollars || row.input_tokens + row.output_tokens;

const Bar = ({ share }: { share: number }) => (
  <span className="bar" role="img" aria-label={`${Math.round(share * 100)} %`}><span style={{ width: `${Math.max(1, share * 100)}%` }} /></span>
);

export const totalOf = (rows: Spent[]): Spent => ({ requests: sum(rows, "requests"), input_tokens: sum(rows, "input_tokens"), output_tokens: sum(rows, "output_tokens"), nanodollars: sum(rows, "nanodollars"), unpriced: sum(rows, "unpriced") });

/** What was used in all. */
export const Figures = ({ total }: { total: Spent }) => (
  <>
    <dl className="figures">
      <div><dt>Cost</dt><dd>{costOf(total)}</dd></div>
      <div><dt>Requests</dt><dd>{count(total.requests)}</dd></div>
      <div><dt>Tokens in</dt><dd>{count(total.input_tokens)}</dd></div>
      <div><dt>Tokens out</dt><dd>{count(total.output_tokens)}</dd></div>
    </dl>
    {total.unpriced > 0 && <p className="note">{plural(total.unpriced, "request")} of models without a known price {total.unpriced === 1 ? "is" : "are"} not in the cost.</p>}
  </>
);

/** The most expensive trees. */
export function Trees({ data }: { data: SpendingResult }) {
  const columns: Column<TreeRow>[] = [{ key: "agent", label: "Tree", grow: true, cell: (row) => <AgentName address={row.address} tab="spending" /> }, ...numbers<TreeRow>(data.trees.reduce((one, row) => one + weightOf(row), 0))];
  return <section aria-labelledby="by-tree"><h2 id="by-tree">{data.count > data.trees.length ? `The ${data.trees.length} most expensive of ${count(data.count)} trees` : "By tree"}</h2><Table label="By tree" columns={columns} rows={data.trees} id={(row) => row.address} /></section>;
}

/** The spending of all trees, or of an agent and those below it. */
export function SpendingTables({ address }: { address?: string }) {
  const { query } = useRoute();
  const isRoot = !address?.includes("/"); // hours are counted for whole trees
  return (
    <>
      <TimeChoice isRoot={isRoot} />
      {isRoot && timeIn(query) ? <SpendingHours address={address} /> : <InAll address={address} />}
    </>
  );
}

function InAll({ address }: { address?: string }) {
  const { data, error, reload } = useAnswer<SpendingResult>("spending", { address, by_class: true, limit: 50 }, EVERY);
  if (!data) return error ? <ErrorNote error={error} onRetry={reload} /> : <Loading what="Adding up" />;
  const rows = [...data.rows].sort((a, b) => b.nanodollars - a.nanodollars || weightOf(b) - weightOf(a));
  if (!rows.length) return <Nothing title="No model was used yet">Requests to models are counted here, with their tokens and cost.</Nothing>;
  const columns: Column<ModelRow>[] = [
    { key: "model", label: "Model and class", grow: true, cell: (row) => <><strong>{row.model || "unknown model"}</strong> <span className="muted">{row.class || "deleted agents"}</span></> },
    ...numbers<ModelRow>(rows.reduce((one, row) => one + weightOf(row), 0)),
  ];
  return (
    <>
      {error && <ErrorNote error={error} />}
      <Figures total={totalOf(rows)} />
      <section aria-labelledby="by-model"><h2 id="by-model">By model and class</h2><Table label="By model and class" columns={columns} rows={rows} id={(row) => `${row.class} ${row.model}`} /></section>
      {!address && <Trees data={data} />}
      <Gaps unanswered={data.unanswered} unread={data.unread} />
    </>
  );
}
