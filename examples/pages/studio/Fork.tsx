// A copy of an agent with all below it, as a new root: as it is now, or as it was before one of its turns.

import { type FormEvent, useEffect, useId, useRef, useState } from "react";
import { createPortal } from "react-dom";
import { type AdminError, ask } from "./api";
import { segments } from "./format";
import { asError } from "./hooks";
import { ErrorNote } from "./parts";
import { agentLink, go } from "./route";
import { useSession } from "./session";
import type { Address, Forked } from "./types";

/** `turn` is the id of a turn: the fork is as the agent was before it. */
type Props = { address: Address; turn?: string; className?: string };

export function ForkButton({ address, turn, className = "button is-small" }: Props) {
  const session = useSession();
  const [isOpen, setOpen] = useState(false);
  const { type } = segments(address).at(-1)!;
  if (!session.can("act") || session.below !== null || !session.roots.includes(type)) return null;
  return (
    <>
      <button type="button" className={className} onClick={() => setOpen(true)}>{turn ? "Fork from here" : "Fork"}</button>
      {isOpen && createPortal(<ForkDialog address={address} turn={turn} onClose={() => setOpen(false)} />, document.body)}
    </>
  );
}

const short = () => Array.from(crypto.getRandomValues(new Uint8Array(2)), (one) => one.toString(16).padStart(2, "0")).join("");

function ForkDialog({ address, turn, onClose }: Props & { onClose: () => void }) {
  const { type, name } = segments(address).at(-1)!;
  const [to, setTo] = useState(() => `${name}~${short()}`);
  const [error, setError] = useState<AdminError | null>(null);
  const [isBusy, setBusy] = useState(false);
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const opener = document.activeElement as HTMLElement | null;
    dialog.current!.showModal();
    return () => void requestAnimationFrame(() => (opener?.isConnected ? opener : document.querySelector<HTMLElement>("main"))?.focus());
  }, []);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      const made = await ask<Forked>("fork", { address, to, ...(turn && { at: { turn } }) });
      onClose();
      go(agentLink(made.address));
    } catch (failed) {
      setError(asError(failed));
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} className="confirm" aria-labelledby={id} onCancel={(event) => (event.preventDefault(), onClose())} onClick={(event) => event.target === dialog.current && onClose()}>
      <form className="confirm-body" onSubmit={submit}>
        <h2 id={id}>Fork {type} {name}?</h2>
        <p>Copies it and all agents below it, as {turn ? "they were before this turn" : "they are now"}, to a new root. The original does not change. Nothing in the fork acts by itself: its scheduled and queued calls are dead letters, which you can replay.</p>
        {error && <ErrorNote error={error} />}
        <div className="field"><label htmlFor={`${id}-to`}>Name of the fork</label><input id={`${id}-to`} type="text" autoFocus autoComplete="off" value={to} onChange={(event) => setTo(event.target.value)} /></div>
        <div className="confirm-foot">
          <button type="button" className="button" onClick={onClose}>Close</button>
          <button type="submit" className="button is-main" disabled={isBusy || !to.trim()}>{isBusy ? "Forking …" : "Fork"}</button>
        </div>
      </form>
    </dialog>
  );
}
