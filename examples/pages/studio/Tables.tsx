// The tables of an agent, and a console for SQL.

import { type KeyboardEvent, useEffect, useState } from "react";
import { type AdminError, ask } from "./api";
import type { TabProps } from "./Agent";
import { bytes, count, duration, plural } from "./format";
import { asError } from "./hooks";
import { CopyButton, ErrorNote, Field, Loading, Nothing } from "./parts";
import { useSession } from "./session";
import type { Json, SqlResult, TableInfo } from "./types";

const SHOWN = 100;
const MORE = 400;

const selectAll = (table: string) => `SELECT * FROM "${table.replaceAll('"', '""')}" LIMIT ${SHOWN}`;

type Outcome = { result: SqlResult; seconds: number; isWrite: boolean };

export default function Tables({ address, schema }: TabProps) {
  const session = useSession();
  const [sql, setSql] = useState("");
  const [chosen, choose] = useState<string | null>(null);
  const [isWrite, setWrite] = useState(false);
  const [outcome, setOutcome] = useState<Outcome | null>(null);
  const [error, setError] = useState<AdminError | null>(null);
  const [isBusy, setBusy] = useState(false);
  const canRun = session.can("sql");
  const run = async (text: string) => {
    setBusy(true);
    const began = performance.now();
    try {
      const result = await ask<SqlResult>("sql", { address, sql: text, write: isWrite || undefined });
      setOutcome({ result, seconds: (performance.now() - began) / 1000, isWrite });
      setError(null);
    } catch (failed) {
      setError(asError(failed));
      setOutcome(null);
    }
    setBusy(false);
  };
  const open = (table: TableInfo) => {
    choose(table.name);
    setSql(selectAll(table.name));
    if (canRun) void run(selectAll(table.name));
  };
  useEffect(() => {
    const own = schema?.tables.filter((one) => one.is_own) ?? [];
    if (own.length && chosen === null) open(own[0]);
  }, [schema]);
  if (!schema) return <Loading what="Loading the tables" />;
  if (!schema.tables.length) return <Nothing title="This agent has no tables yet">Its database is created when it first stores something.</Nothing>;
  const table = schema.tables.find(({ name }) => name === chosen);
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) (event.preventDefault(), void run(sql));
  };
  return (
    <div className="tables">
      <nav className="tables-list" aria-label="Tables">
        <TableList title="Tables of the app" tables={schema.tables.filter((one) => one.is_own)} chosen={chosen} onOpen={open} />
        <TableList title="Tables of sapwood" isFolded={schema.tables.some((one) => one.is_own)} tables={schema.tables.filter((one) => !one.is_own)} chosen={chosen} onOpen={open} />
        <p className="muted">{bytes(schema.bytes)} in total</p>
      </nav>
      <div className="tables-main">
        {table && <Columns table={table} />}
        {canRun ? (
          <form className="console" onSubmit={(event) => (event.preventDefault(), void run(sql))}>
            <Field label="SQL">{(id) => <textarea id={id} className="area" rows={3} value={sql} spellCheck={false} placeholder="SELECT …" onChange={(event) => setSql(event.target.value)} onKeyDown={onKey} />}</Field>
            <div className="row">
              <button type="submit" className="button is-main" disabled={!sql.trim() || isBusy}>Run</button>
              <span className="muted">Ctrl+Enter</span>
              {session.can("write") && <label className="check"><input type="checkbox" checked={isWrite} onChange={(event) => setWrite(event.target.checked)} /> Allow changes, which wakes the agent</label>}
            </div>
          </form>
        ) : <p className="note">Rows are shown with a token that has the scope <code>sql</code>.</p>}
        {error && <ErrorNote error={error} />}
        {outcome && <Rows key={`${outcome.seconds}`} outcome={outcome} />}
      </div>
    </div>
  );
}

function TableList({ title, tables, chosen, onOpen, isFolded = false }: { title: string; tables: TableInfo[]; chosen: string | null; onOpen: (table: TableInfo) => void; isFolded?: boolean }) {
  if (!tables.length) return null;
  const list = (
    <ul aria-label={title}>
      {tables.map((one) => (
        <li key={one.name}><button type="button" aria-current={one.name === chosen || undefined} onClick={() => onOpen(one)}><span>{one.name}</span><span className="muted" title={isEstimate(one) ? "At most: rows that were deleted may be counted" : "Rows"}>{rowsOf(one)}</span></button></li>
      ))}
    </ul>
  );
  return isFolded ? <details><summary>{title} ({tables.length})</summary>{list}</details> : <><h2>{title}</h2>{list}</>;
}

const COUNTED = 2000;
const isEstimate = ({ rows }: TableInfo) => rows === null || rows > COUNTED;
/** How many rows a table has: counted by the server up to a number, estimated above it. */
const rowsOf = ({ rows }: TableInfo) => (rows === null ? `${count(COUNTED)}+` : rows > COUNTED ? `≤ ${count(rows)}` : count(rows));

const Columns = ({ table }: { table: TableInfo }) => (
  <p className="columns" aria-label={`Columns of ${table.name}`} role="note">
    <strong>{table.name}</strong> <span className="muted">{rowsOf(table)} {table.rows === 1 ? "row" : "rows"}</span> {table.columns.map(({ name, type, not_null, primary_key }) => <span key={name} className="column"><code>{name}</code> <span className="muted">{type.toLowerCase()}{primary_key ? ", key" : not_null ? "" : ", null"}</span></span>)}
  </p>
);

function Rows({ outcome: { result, seconds, isWrite } }: { outcome: Outcome }) {
  const [shown, setShown] = useState(SHOWN);
  const { columns, rows, more } = result;
  const text = () => [columns, ...rows].map((row) => row.map((one) => cell(one).replaceAll(/[\t\n]/g, " ")).join("\t")).join("\n");
  if (!columns.length) return <p className="note" role="status">{isWrite ? "Done." : "The statement has no result."}</p>;
  return (
    <>
      <div className="row end-row">
        <span className="muted" role="status">{more ? "The first " : ""}{plural(rows.length, "row")} in {duration(seconds)}</span>
        {rows.length > 0 && <CopyButton text={text} label="Copy rows" />}
      </div>
      <div className="table-box" tabIndex={0} role="group" aria-label="Result">
        <table className="table sql">
          <thead><tr>{columns.map((one, at) => <th key={at} scope="col">{one}</th>)}</tr></thead>
          <tbody>{rows.slice(0, shown).map((row, at) => <tr key={at}>{row.map((one, column) => <td key={column}><Cell value={one} /></td>)}</tr>)}</tbody>
        </table>
      </div>
      {rows.length > shown && <p className="more"><button type="button" className="button" onClick={() => setShown(shown + MORE)}>Show more of {plural(rows.length, "row")}</button></p>}
    </>
  );
}

const cell = (value: Json) => (value === null ? "NULL" : typeof value === "string" ? value : JSON.stringify(value));

function Cell({ value }: { value: Json }) {
  if (value === null) return <span className="json-null">NULL</span>;
  const text = cell(value);
  return text.length > 200 ? <details><summary>{text.slice(0, 200)}…</summary>{text}</details> : <>{text}</>;
}
