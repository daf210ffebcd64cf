import { Gear, Turn } from "./icons";
import { Badge } from "./Page";
import { type ToolState, badgeOf, rows, hasEntries, format } from "./ToolCard";

type Props = { name: string; state: ToolState; input?: unknown; output?: unknown; error?: string };

/** A tool call on one line, for places where tool calls are secondary. */
export function ToolLine({ name, state, input, output, error }: Props) {
  const [words, tone] = badgeOf(state, error);
  const isBusy = state === "loading" || state === "streaming" || state === "approved";
  return (
    <div className="tool-line">
      <details>
        <summary>
          <Gear />
          <span className="what"><span className="name">{name}</span>{hasEntries(input) && <span className="input">{Object.values(input as object).map(brief).join(", ")}</span>}</span>
          {state !== "complete" && <Badge tone={tone} dot busy={isBusy}>{words}</Badge>}
          <Turn />
        </summary>
        <dl tabIndex={0}>
          {rows(input)}
          {output !== undefined && <><dt>result</dt><dd>{format(output)}</dd></>}
        </dl>
      </details>
      {error && <p className="run-error">{error}</p>}
    </div>
  );
}

const brief = (value: unknown) => (typeof value === "string" ? value : JSON.stringify(value));
