// A JSON value as a tree that opens. What agents wrote is only ever text.

import { type ReactNode, useState } from "react";
import { plural } from "./format";
import { isHidden, Shown } from "./parts";
import type { Json } from "./types";

const CHUNK = 100;
const LONG = 300;

type Props = { value: Json; name?: string; depth?: number; open?: number };

export function JsonView({ value, name, depth = 0, open = 2 }: Props) {
  const [isOpen, setOpen] = useState(depth < open);
  const [shown, setShown] = useState(CHUNK);
  const label = name !== undefined && <span className="json-key">{name}: </span>;
  if (value === null || typeof value !== "object") return <div className="json-line">{label}<Scalar value={value} /></div>;
  if (isHidden(value)) return <div className="json-line">{label}<Shown value={value}>{() => null}</Shown></div>;
  const entries = Array.isArray(value) ? value.map((one, at): [string, Json] => [String(at), one]) : Object.entries(value);
  const size = Array.isArray(value) ? plural(entries.length, "item") : plural(entries.length, "field");
  if (!entries.length) return <div className="json-line">{label}<span className="json-mark">{Array.isArray(value) ? "[]" : "{}"}</span></div>;
  const inside = (
    <>
      {entries.slice(0, shown).map(([key, one]) => <JsonView key={key} name={key} value={one} depth={depth + 1} open={open} />)}
      {entries.length > shown && <button type="button" className="button is-small" onClick={() => setShown(shown + 10 * CHUNK)}>Show more of {size}</button>}
    </>
  );
  if (depth === 0 && open > 0) return inside;
  return (
    <div className="json-line">
      <button type="button" className={`json-twist${isOpen ? " is-open" : ""}`} aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        {label || <span className="unseen">{Array.isArray(value) ? "array" : "object"} </span>}<span className="json-mark">{size}</span>
      </button>
      {isOpen && <div className="json-inside">{inside}</div>}
    </div>
  );
}

function Scalar({ value }: { value: Json }): ReactNode {
  const [isWhole, setWhole] = useState(false);
  if (typeof value !== "string") return <span className={value === null ? "json-null" : "json-number"}>{String(value)}</span>;
  const isLong = value.length > LONG && !isWhole;
  return (
    <>
      <span className="json-string">{isLong ? `${value.slice(0, LONG)}…` : value || "“”"}</span>
      {isLong && <button type="button" className="button is-small json-more" onClick={() => setWhole(true)}>{plural(value.length, "character")}</button>}
    </>
  );
}

/** A JSON value in its own box. */
export const JsonBox = ({ label, value, open }: { label: string; value: Json; open?: number }) => (
  <div className="json" role="group" aria-label={label} tabIndex={0}><JsonView value={value} open={open} /></div>
);

const BRIEF = 100;

/** A value on one line; a long one opens. */
export function Brief({ label, value }: { label: string; value: Json }) {
  const isPlain = typeof value === "object" && value !== null && !Array.isArray(value) && !isHidden(value);
  const text = isPlain ? Object.entries(value).map(([name, one]) => `${name}: ${JSON.stringify(one)}`).join(", ") : JSON.stringify(value);
  if (!text) return null;
  if (text.length <= BRIEF) return <span className="mono brief">{text}</span>;
  return <details className="brief"><summary className="mono">{text.slice(0, BRIEF)}…</summary><JsonBox label={label} value={value} open={2} /></details>;
}
