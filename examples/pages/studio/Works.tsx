// What an agent did: its turns, calls and fibers, the newest first.

import type { TabProps } from "./Agent";
import { duration } from "./format";
import { useNow, usePages, useRefresh } from "./hooks";
import { PagedTable } from "./PagedTable";
import { type Column, Nothing, StatusBadge, Time } from "./parts";
import { link } from "./route";
import { isOver, kindOfWork, nameOfWork } from "./spans";
import type { Work } from "./types";

const LIMIT = 50;
const EVERY = 5000;

export default function Works({ address }: TabProps) {
  const pages = usePages<Work>("works", { address }, LIMIT);
  useRefresh(pages, LIMIT, EVERY);
  const now = useNow(pages.rows.some((row) => !isOver(row)) ? 1000 : null);
  const columns: Column<Work>[] = [
    { key: "what", label: "What", grow: true, cell: (row) => <><a href={link(["t", address, row.work])}><strong>{nameOfWork(row)}</strong></a> <span className="muted" title={row.work}>{kindOfWork(row)}</span></> },
    { key: "status", label: "Status", cell: (row) => <><StatusBadge status={row.status} />{row.attempt > 1 && <span className="muted"> attempt {row.attempt}</span>}</> },
    { key: "began", label: "Began", cell: (row) => <Time at={row.began_at} /> },
    { key: "took", label: "Took", align: "end", cell: (row) => (row.ended_at === null && isOver(row) ? "–" : duration((row.ended_at ?? now) - row.began_at)) },
  ];
  return (
    <PagedTable label="Work" pages={pages} columns={columns} id={(row) => String(row.number)} loading="Loading the records">
      <Nothing title="There are no records">Turns, runs, fibers, and scheduled and queued calls appear here. Calls of clients are not recorded. Records are deleted after the <code>record_retention</code> of the class.</Nothing>
    </PagedTable>
  );
}
