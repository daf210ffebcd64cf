// The files of an agent: what it stored, how large it is, and who needs it.

import type { TabProps } from "./Agent";
import { bytes, plural } from "./format";
import { usePages, useRefresh } from "./hooks";
import { PagedTable } from "./PagedTable";
import { type Column, CopyButton, Nothing, Shown, Time } from "./parts";
import type { FileRow, Page } from "./types";

const LIMIT = 100;
const EVERY = 5000;
const HOLDERS: Record<string, string> = { code: "the agent", upload: "an upload", messages: "messages" };
const PLACES = { database: "in the database", folder: "in the folder", archive: "in the archive" };

const COLUMNS: Column<FileRow>[] = [
  { key: "name", label: "Name", grow: true, cell: (row) => <>{row.name === null ? <span className="muted">without a name</span> : <strong><Shown value={row.name}>{(text) => <>{text}</>}</Shown></strong>} <span className="muted">{row.media_type}</span></> },
  { key: "size", label: "Size", align: "end", cell: (row) => bytes(row.size) },
  { key: "at", label: "Stored", cell: (row) => <><Time at={row.created_at} /> <span className="muted">{PLACES[row.place]}</span></> },
  { key: "used", label: "Used by", cell: (row) => row.used_by.map((one) => HOLDERS[one] ?? one).join(", ") || "–" },
  { key: "digest", label: "SHA-256", cell: (row) => <span className="row-actions"><code title={row.digest}>{row.digest.slice(0, 10)}…</code><CopyButton text={row.digest} label="Copy" /></span> },
];

export default function Files({ address }: TabProps) {
  const pages = usePages<FileRow>("files", { address }, LIMIT);
  useRefresh(pages, LIMIT, EVERY);
  const totals = pages.first as (Page<FileRow> & { bytes: number; uploads: number }) | null;
  const uploads = totals?.uploads ? `${plural(totals.uploads, "upload")} not complete` : "";
  const about = totals && <p className="muted" role="status">{plural(totals.total ?? 0, "file")}, {bytes(totals.bytes)}{uploads && `, ${uploads}`}</p>;
  return (
    <PagedTable label="Files" pages={pages} columns={COLUMNS} id={(row) => row.digest} loading="Loading the files" about={about}>
      <Nothing title={uploads || "There are no files"}>Files that the agent stores with <code>self.files</code>, and those that clients upload, appear here.</Nothing>
    </PagedTable>
  );
}
