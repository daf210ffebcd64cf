// A dead letter whose method has another name now: call that one with the same arguments.

import { useState } from "react";
import { ActButton } from "./Act";
import { Field } from "./parts";
import { useSession } from "./session";
import type { Letter } from "./types";

export function ReplayAs({ letter, onDone }: { letter: Letter; onDone: () => void }) {
  const session = useSession();
  const [text, setText] = useState("");
  const method = text.trim();
  if (!session.can("act") || !session.can("call")) return null;
  return (
    <div className="row replay-as">
      <Field label={`New name of ${letter.method}`}>{(id) => <input id={id} type="text" value={text} spellCheck={false} autoComplete="off" onChange={(event) => setText(event.target.value)} />}</Field>
      {method && <ActButton label={`Replay as ${method}`} title={`Replay ${letter.method} as ${method}?`} endpoint="act" params={{ address: letter.agent, id: letter.id, do: "replay", method }} onDone={onDone} />}
    </div>
  );
}
