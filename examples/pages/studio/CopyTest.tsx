// A turn as a test: the file that the server makes of it, to copy or save.

import { useState } from "react";
import { createPortal } from "react-dom";
import { Drawer } from "../design/Drawer";
import { Cross } from "../design/icons";
import { useAnswer } from "./hooks";
import { CopyButton, ErrorNote, Loading } from "./parts";
import { useSession } from "./session";

/** A button that shows a turn as a pytest file. */
export function CopyTest({ address, turn, className = "button is-small" }: { address: string; turn: string; className?: string }) {
  const session = useSession();
  const [opener, open] = useState<HTMLElement | null>(null);
  if (!session.can("content")) return null;
  return (
    <>
      <button type="button" className={className} onClick={(event) => open(event.currentTarget)}>Copy as test</button>
      {opener && createPortal(<TestFile address={address} turn={turn} onClose={() => open(null)} returnTo={() => opener} />, document.body)}
    </>
  );
}

function TestFile({ address, turn, onClose, returnTo }: { address: string; turn: string; onClose: () => void; returnTo: () => HTMLElement | null }) {
  const { data, error, reload } = useAnswer<{ file: string; text: string }>("record", { address, turn });
  const save = () => {
    const url = URL.createObjectURL(new Blob([data!.text], { type: "text/x-python" }));
    const link = Object.assign(document.createElement("a"), { href: url, download: data!.file });
    link.click();
    URL.revokeObjectURL(url);
  };
  return (
    <Drawer label="Copy as test" onClose={onClose} returnTo={returnTo}>
      <div className="drawer-head">
        <div className="drawer-bar"><span className="drawer-title"><h2>{data ? data.file : "Copy as test"}</h2></span><span className="spacer" /><button type="button" className="button is-quiet" aria-label="Close" onClick={onClose}><Cross /></button></div>
      </div>
      <div className="drawer-scroll">
        <p className="muted">A pytest file with what the model and the tools answered in this turn. It passes as it is, and fails when the agent behaves differently.</p>
        {error && <ErrorNote error={error} onRetry={reload} />}
        {!data && !error && <Loading what="Making the test" />}
        {data && <div className="row"><CopyButton text={data.text} label="Copy file" /><button type="button" className="button is-small" onClick={save}>Save {data.file}</button></div>}
        {data && <pre className="stack" tabIndex={0} aria-label={data.file}>{data.text}</pre>}
      </div>
    </Drawer>
  );
}
