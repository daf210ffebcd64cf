// The state of an agent, as it is now.

import type { TabProps } from "./Agent";
import { useAnswer } from "./hooks";
import { JsonBox } from "./Json";
import { CopyButton, ErrorNote, isHidden, Loading, Nothing, Shown } from "./parts";
import type { Content, Json } from "./types";

const EVERY = 2000;

export default function State({ address, row }: TabProps) {
  const { data, error, reload } = useAnswer<{ state: Content<Json> }>("state", { address }, row.status === "asleep" ? 0 : EVERY);
  if (!data) return error ? <ErrorNote error={error} onRetry={reload} /> : <Loading />;
  const { state } = data;
  if (isHidden(state)) return <Nothing title="The token may not see the state">It is of this kind and size: <Shown value={state}>{() => null}</Shown>. A token with the scope <code>content</code> shows it.</Nothing>;
  if (state === null) return <Nothing title="This agent has no state">Its class sets no <code>initial_state</code>, and nothing was stored with <code>set_state</code>.</Nothing>;
  return (
    <>
      {error && <ErrorNote error={error} />}
      <div className="row end-row"><CopyButton text={() => JSON.stringify(state, null, 2)} label="Copy as JSON" /></div>
      <JsonBox label="State" value={state as Json} />
    </>
  );
}
