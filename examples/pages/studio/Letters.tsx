// Calls whose retries failed: why, with which arguments, and what to do about them.

import { ActButton } from "./Act";
import { plural } from "./format";
import { useAnswer } from "./hooks";
import { JsonBox } from "./Json";
import { AgentName, ErrorNote, Gaps, Loading, Needs, Nothing, Time } from "./parts";
import { watchReplay } from "./replays";
import { ReplayAs } from "./ReplayAs";
import { useSession } from "./session";
import type { Letter, Unread } from "./types";

const EVERY = 10_000;

type Answer = { letters: Letter[]; more: boolean; unread: Unread[]; unanswered?: string[] };

export function Letters({ address }: { address?: string }) {
  return useSession().can("content") ? <List address={address} /> : <Needs scope="content" what="Dead letters are shown" />;
}

function List({ address }: { address?: string }) {
  const { data, error, reload } = useAnswer<Answer>("dead-letters", address ? { address, below: true } : { below: true }, EVERY);
  if (!data) return error ? <ErrorNote error={error} onRetry={reload} /> : <Loading what="Loading the dead letters" />;
  const { letters } = data;
  const [only] = letters;
  return (
    <>
      {error && <ErrorNote error={error} />}
      {!letters.length && <Nothing title="There are no dead letters">A call becomes one when all its retries have failed, or when its agent is forked.</Nothing>}
      {address && letters.length > 1 && new Set(letters.map((one) => one.agent)).size === 1 && (
        <div className="row">
          <ActButton label="Replay all" title={`Replay ${plural(letters.length, "dead letter")}?`} endpoint="act" params={{ address: only.agent, id: "all", do: "replay" }} watch={() => watchReplay(only.agent, letters.map(({ method }) => method))} onDone={reload} />
          <ActButton label="Delete all" title={`Delete ${plural(letters.length, "dead letter")}?`} endpoint="act" params={{ address: only.agent, id: "all", do: "delete" }} isDanger onDone={reload} />
        </div>
      )}
      <ul className="cards">
        {letters.map((one) => (
          <li key={`${one.agent} ${one.id}`} className="card-row">
            <div className="card-row-head">
              <span><strong className="mono">{one.method}</strong> of <AgentName address={one.agent} /></span>
              <span className="muted"><Time at={Date.parse(one.failed_at) / 1000} />, {plural(one.attempts, "attempt")}{one.occurrences > 1 ? `, ${one.occurrences} times` : ""}</span>
            </div>
            <p className="row-error"><code>{one.code}</code> {one.error}</p>
            <JsonBox label={`Arguments of ${one.method}`} value={one.arguments} open={1} />
            {one.code === "signature_changed" && <ReplayAs letter={one} onDone={reload} />}
            <div className="row">
              <ActButton label="Replay" title={`Replay ${one.method}?`} endpoint="act" params={{ address: one.agent, id: one.id, do: "replay" }} watch={() => watchReplay(one.agent, [one.method])} onDone={reload} />
              <ActButton label="Delete" title={`Delete the dead letter of ${one.method}?`} endpoint="act" params={{ address: one.agent, id: one.id, do: "delete" }} isDanger onDone={reload} />
            </div>
          </li>
        ))}
      </ul>
      {data.more && <p className="note">There are more. Delete or replay some of these first.</p>}
      <Gaps unanswered={data.unanswered} unread={data.unread} />
    </>
  );
}
