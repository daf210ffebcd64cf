// The runs that an agent has started.

import { ActButton } from "./Act";
import type { TabProps } from "./Agent";
import { bytes, duration } from "./format";
import { useNow, usePages, useRefresh } from "./hooks";
import { PagedTable } from "./PagedTable";
import { AgentName, type Column, Field, Nothing, StatusBadge, Time } from "./parts";
import { childOf } from "./children";
import { agentLink, replaceQuery, useRoute } from "./route";
import type { RunRow } from "./types";

const STATUSES = ["queued", "running", "completed", "failed", "cancelled", "interrupted"];
const LIMIT = 50;
const EVERY = 5000;
const UNFINISHED = ["queued", "running"];

export default function Runs({ address }: TabProps) {
  const { query } = useRoute();
  const status = query.get("status");
  const pages = usePages<RunRow>("runs", { address, status }, LIMIT);
  useRefresh(pages, LIMIT, EVERY);
  const now = useNow(pages.rows.some((row) => UNFINISHED.includes(row.status)) ? 1000 : null);
  const columns: Column<RunRow>[] = [
    { key: "agent", label: "Agent", grow: true, cell: (row) => <AgentName address={childOf(address, row.agent)} short /> },
    { key: "status", label: "Status", cell: (row) => <><StatusBadge status={row.status} />{row.pinned && <span className="muted"> pinned</span>}</> },
    { key: "started", label: "Started", cell: (row) => <Time at={row.started_at} /> },
    { key: "took", label: "Took", align: "end", cell: (row) => duration((row.ended_at ?? now) - row.started_at) },
    { key: "size", label: "Size", align: "end", cell: (row) => bytes(row.bytes) },
    { key: "act", label: "", align: "end", cell: (row) => UNFINISHED.includes(row.status) && <ActButton label="Cancel" title="Cancel the run?" endpoint="cancel-run" params={{ address, run: row.id }} onDone={pages.reload} /> },
  ];
  return (
    <>
      <div className="row">
        <Field label="Status" unseen>{(id) => <select id={id} value={status ?? ""} onChange={(event) => replaceQuery(["a", address, "runs"], { status: event.target.value })}><option value="">Any status</option>{STATUSES.map((one) => <option key={one}>{one}</option>)}</select>}</Field>
      </div>
      <PagedTable label="Runs" pages={pages} columns={columns} id={(row) => row.id} loading="Loading the runs">
        <Nothing title={status ? `No run is ${status}` : "This agent has started no runs"}>Runs are work that an agent gives to its sub-agents. <a href={agentLink(address, "timeline")}>What it did itself</a> is in its timeline.</Nothing>
      </PagedTable>
    </>
  );
}
