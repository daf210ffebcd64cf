import { Gear, Turn } from "./icons";
import { Badge } from "./Page";
import { type ToolState, badgeOf, rows, shown, written } from "./ToolCard";

type Props = { name: string; state: ToolState; input?: unknown; output?: unknown; error?: string };

/** A call of a tool on one line, for places where calls are a side matter. */
export function ToolLine({ name, state, input, output, error }: Props) {
  const [words, tone] = badgeOf(state, error);
  const isBusy = state === "loading" || state === "streaming" || state === "approved";
  return (
    <div className="tool-line">
      <details>
        <summary>
          <Gear />
          <span className="what"><span className="name">{name}</span>{shown(input) && <span className="input">{Object.values(input as object).map(brief).join(", ")}</span>}</span>
          {state !== "complete" && <Badge tone={tone} dot busy={isBusy}>{words}</Badge>}
          <Turn />
        </summary>
        <dl tabIndex={0}>
          {rows(input)}
          {output !== undefined && <><dt>result</dt><dd>{written(output)}</dd></>}
        </dl>
      </details>
      {error && <p className="run-error">{error}</p>}
    </div>
  );
}

const brief = (value: unknown) => (typeof value === "string" ? value : JSON.stringify(value));
