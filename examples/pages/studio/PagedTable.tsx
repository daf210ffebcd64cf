// A table that is loaded by pages.

import type { ReactNode } from "react";
import type { Pages } from "./hooks";
import { type Column, ErrorNote, Loading, MoreButton, Table } from "./parts";

/** `about` stands above the rows. `children` stand in their place if there are none. */
type Props<Row> = { pages: Pages<Row>; label: string; columns: Column<Row>[]; id: (row: Row) => string; loading: string; about?: ReactNode; children: ReactNode };

export function PagedTable<Row>({ pages, label, columns, id, loading, about, children }: Props<Row>) {
  return (
    <>
      {pages.error && <ErrorNote error={pages.error} onRetry={pages.reload} />}
      {pages.rows.length > 0 && about}
      {pages.rows.length > 0 && <Table label={label} columns={columns} rows={pages.rows} id={id} />}
      {!pages.rows.length && pages.first && children}
      {!pages.first && !pages.error && <Loading what={loading} />}
      <MoreButton {...pages} />
    </>
  );
}
