// The branches of a conversation as a tree, and the place of a message among its siblings.

import { useEffect, useState } from "react";
import { ActButton } from "./Act";
import { plural } from "./format";
import { type Loaded, useAnswer } from "./hooks";
import { ErrorNote, Shown, Time } from "./parts";
import type { Address, BranchRow } from "./types";

type Answer = { rows: BranchRow[] };

/** The branches, loaded again when what they are about has changed. */
export function useBranches(address: Address, pulse: string): Loaded<Answer> {
  const loaded = useAnswer<Answer>("branches", { address });
  const { reload } = loaded;
  useEffect(reload, [reload, pulse]);
  return loaded;
}

/** "2 / 3" at a message that has siblings. */
export function Sibling({ id, branches }: { id: string; branches: BranchRow[] }) {
  const own = branches.find((one) => one.id === id);
  if (!own) return null;
  const siblings = branches.filter(({ after }) => after === own.after);
  const at = siblings.indexOf(own) + 1;
  return <span className="sibling" title={`${own.role === "user" ? "Version" : "Answer"} ${at} of ${siblings.length}. The others are in other branches.`}>{at} / {siblings.length}</span>;
}

export function Branches({ address, branches, onSwitch }: { address: Address; branches: Loaded<Answer>; onSwitch: () => void }) {
  const [isOpen, setOpen] = useState(false);
  if (branches.error) return <ErrorNote error={branches.error} />;
  const rows = branches.data?.rows ?? [];
  if (!rows.length) return null;
  return (
    <details className="branches" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{plural(rows.length, "branch", "branches")}</summary>
      {isOpen && <Level address={address} rows={rows} parent={null} onSwitch={onSwitch} />}
    </details>
  );
}

function Level({ address, rows, parent, onSwitch }: { address: Address; rows: BranchRow[]; parent: string | null; onSwitch: () => void }) {
  const own = rows.filter((one) => one.parent === parent);
  if (!own.length) return null;
  return (
    <ul>
      {own.map((one) => (
        <li key={one.id}>
          <div className={`branch${one.is_active ? " is-active" : ""}`} aria-current={one.is_active || undefined}>
            <span className="branch-text"><span className="muted">{one.role}</span> <Shown value={one.text}>{(text) => <>{text || "without text"}</>}</Shown></span>
            <span className="muted">{plural(one.messages, "message")}, <Time at={one.at} /></span>
            {one.is_active ? <span className="muted">active</span> : <ActButton label="Switch" title="Switch to this branch?" endpoint="switch-branch" params={{ address, id: one.id }} onDone={onSwitch} />}
          </div>
          <Level address={address} rows={rows} parent={one.id} onSwitch={onSwitch} />
        </li>
      ))}
    </ul>
  );
}
