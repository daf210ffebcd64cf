// One part of what was streamed: a text, or a tool call with its input and output. All of it is text.

import type { ReactNode } from "react";
import type { Part } from "./chunks";
import { JsonBox } from "./Json";
import { StatusBadge } from "./parts";

export function StreamedPart({ part }: { part: Part }): ReactNode {
  const cursor = !part.isOver && <span className="cursor" aria-hidden="true" />;
  if (part.kind === "text") return <p className="asked-text">{part.text}{cursor}</p>;
  if (part.kind === "reasoning") return <p className="asked-text muted">{part.text}{cursor}</p>;
  if (part.kind === "other") return <JsonBox label={part.name} value={part.output ?? null} open={1} />;
  return (
    <div className="asked-part">
      <p><span className="muted">tool </span><strong className="mono">{part.name}</strong> {part.error !== undefined ? <StatusBadge status="failed" /> : part.isOver ? <StatusBadge status="completed" /> : null}</p>
      {part.input !== undefined || part.text ? <span className="asked-role">Input</span> : null}
      {part.input !== undefined ? <JsonBox label={`Input of ${part.name}`} value={part.input} open={1} /> : <p className="asked-text mono">{part.text}{cursor}</p>}
      {part.error !== undefined && <p className="row-error">{part.error}</p>}
      {part.output !== undefined && <span className="asked-role">Output</span>}
      {part.output !== undefined && <JsonBox label={`Output of ${part.name}`} value={part.output} open={1} />}
    </div>
  );
}
