// What is due or waits to be done: scheduled calls, queued calls and fibers that are unfinished.

import { ActButton } from "./Act";
import { usePages, useRefresh } from "./hooks";
import { Brief } from "./Json";
import { PagedTable } from "./PagedTable";
import { AgentName, type Column, Gaps, Nothing, Shown, StatusBadge, Time } from "./parts";
import type { AgendaRow } from "./types";

const LIMIT = 100;
const EVERY = 3000;
const KINDS = { schedule: "schedule", queued: "queued call", fiber: "fiber" };

export function Agenda({ address }: { address?: string }) {
  const pages = usePages<AgendaRow>("agenda", address ? { address, below: false } : {}, LIMIT);
  useRefresh(pages, LIMIT, EVERY);
  const act = (row: AgendaRow, label: string, what: string, isDanger = false) => (
    <ActButton key={what} label={label} title={`${label}: ${row.name}?`} endpoint="act" params={{ address: row.address, id: row.id, do: what }} isDanger={isDanger} onDone={pages.reload} />
  );
  const columns: Column<AgendaRow>[] = [
    { key: "name", label: "What", grow: true, cell: (row) => (
      <>
        <strong className="mono">{row.name}</strong> <span className="muted">{KINDS[row.kind]}{row.repeats ? ", repeats" : ""}{row.queue ? `, queue ${row.queue}` : ""}</span>
        {row.arguments && <br />}
        {row.arguments && <Shown value={row.arguments}>{(value) => <Brief label={`Arguments of ${row.name}`} value={value} />}</Shown>}
        {row.error && <p className="row-error"><Shown value={row.error}>{(text) => <>{text}</>}</Shown></p>}
      </>
    ) },
    ...(address ? [] : [{ key: "agent", label: "Agent", cell: (row: AgendaRow) => <AgentName address={row.address} tab="schedules" /> }]),
    { key: "status", label: "Status", cell: (row) => <><StatusBadge status={row.status === "waiting" ? "queued" : row.status}>{row.status}</StatusBadge>{row.failures > 0 && <span className="row-error"> failed {row.failures}×</span>}</> },
    { key: "due", label: "Due", cell: (row) => (row.due_at === null ? <span className="muted">{row.kind === "fiber" ? "when resumed" : "behind others"}</span> : <Time at={row.due_at} />) },
    { key: "act", label: "", align: "end", cell: (row) => (
      <span className="row-actions">
        {row.kind === "schedule" && row.failures === 0 && act(row, "Fire now", "fire")}
        {(row.failures > 0 || (row.kind === "fiber" && row.status === "waiting")) && act(row, "Retry now", "retry")}
        {act(row, "Cancel", "cancel", true)}
      </span>
    ) },
  ];
  return (
    <>
      <PagedTable label="Scheduled and queued work" pages={pages} columns={columns} id={(row) => `${row.address} ${row.id}`} loading="Loading what is due">
        <Nothing title="No call is scheduled or queued">Scheduled calls, queued calls and unfinished fibers appear here. Turns and runs that are unfinished are in the timelines of their agents.</Nothing>
      </PagedTable>
      <Gaps unanswered={pages.first?.unanswered} unread={pages.first?.unread} />
    </>
  );
}
