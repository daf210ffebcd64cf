// "‹ 2 / 3 ›" at a message that was edited or regenerated: the others are in other branches of the conversation.

import { useEffect, useState } from "react";

// --8<-- [start:versions]
export type Branch = { message_id: string; after: string | null };
type Agent = { call: <Result>(method: string, args?: unknown[]) => Promise<Result> };

/** The branches, loaded again when the key changes. With `null`, none are loaded. */
export function useBranches(agent: Agent, key: string | null): Branch[] {
  const [branches, setBranches] = useState<Branch[]>([]);
  useEffect(() => {
    if (key === null) return;
    let isCurrent = true;
    agent.call<Branch[]>("branches").then((found) => isCurrent && setBranches(found), () => undefined);
    return () => void (isCurrent = false);
  }, [key]);
  return branches;
}

export function Versions({ agent, id, branches, disabled }: { agent: Agent; id: string; branches: Branch[]; disabled: boolean }) {
  const own = branches.find((one) => one.message_id === id);
  if (!own) return null;
  const siblings = branches.filter(({ after }) => after === own.after);
  const at = siblings.indexOf(own);
  const show = (other: number) => void agent.call<boolean>("switch_branch", [siblings[other].message_id]).catch(() => undefined);
  return (
    <div className="versions" role="group" aria-label="Versions">
      <button type="button" className="button is-quiet" aria-label="Previous version" disabled={disabled || at === 0} onClick={() => show(at - 1)}>‹</button>
      <span>{at + 1} / {siblings.length}</span>
      <button type="button" className="button is-quiet" aria-label="Next version" disabled={disabled || at === siblings.length - 1} onClick={() => show(at + 1)}>›</button>
    </div>
  );
}
// --8<-- [end:versions]
