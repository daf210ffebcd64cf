import { type ReactNode, useEffect, useId, useRef, useState } from "react";
import { useFollowing } from "./Conversation";
import { Link } from "./Drawer";
import { Out, Thought, Turn } from "./icons";
import { Badge } from "./Page";
import { Text } from "./Text";

export type RunStatus = "running" | "completed" | "error" | "aborted" | "interrupted";

const BADGES: Record<RunStatus, [string, "plain" | "good" | "warn" | "bad"]> = {
  running: ["Running", "plain"],
  completed: ["Done", "good"],
  error: ["Error", "bad"],
  aborted: ["Stopped", "warn"],
  interrupted: ["Interrupted", "warn"],
};

/** The status of a run. */
export const StatusBadge = ({ status }: { status: RunStatus }) => (
  <Badge tone={BADGES[status][1]} dot busy={status === "running"}>{BADGES[status][0]}</Badge>
);

type Props = {
  id: string;
  kind: string;
  name: string;
  icon: ReactNode;
  task: string;
  status: RunStatus;
  /** The result as text, shown while the panel is collapsed. */
  result?: string;
  error?: string;
  href?: string;
  onOpen: () => void;
  children: ReactNode;
};

/**
 * A run of a helper agent: its class, task, status and messages.
 * The panel is expanded while the run is active and collapses when it ends, so that the answer of the caller stays visible. A click or a focus inside overrides this.
 */
export function RunPanel({ id, kind, name, icon, task, status, result, error, href, onOpen, children }: Props) {
  const [chosen, choose] = useState<boolean>();
  const isOpen = chosen ?? status === "running";
  const body = useId();
  const what = task ? `${name}: ${short(task)}` : name;
  return (
    <div className="run" role="group" aria-label={what} data-testid="helper-panel" data-helper-type={kind} data-helper-id={id} data-helper-status={status}>
      <div className="run-head">
        <button type="button" className="run-toggle" aria-expanded={isOpen} aria-controls={body} onClick={() => choose(!isOpen)}>
          <span className="run-icon">{icon}</span>
          <span className="run-what"><span className="name">{name}</span>{task && <span className="task"><span className="unseen">: </span>{task}</span>}</span>
          <StatusBadge status={status} />
          <Turn />
        </button>
        {href && <Link href={href} onOpen={onOpen} className="button is-quiet run-open" label={`Open ${what}`} title={`Talk to this ${name}`} data-opens={id}><Out /></Link>}
      </div>
      <div id={body} className="run-body" aria-live="off" onFocus={() => choose(true)}>
        {isOpen && <Tail label={`What ${name} does`} isLive={status === "running"} onAway={() => choose(true)}>{children}</Tail>}
        {!isOpen && !error && result && <p className="run-result">{plain(result)}</p>}
        {error && <p className="run-error">{error}</p>}
      </div>
    </div>
  );
}

/** A box of limited height that scrolls with its content, unless the user has scrolled up. */
export function Tail({ label, isLive, onAway, children }: { label: string; isLive: boolean; onAway?: () => void; children: ReactNode }) {
  const box = useRef<HTMLDivElement>(null);
  const { isAway, onScroll } = useFollowing(box, { slack: 24, isOn: isLive });
  useEffect(() => {
    if (isAway && isLive) onAway?.();
  }, [isAway]);
  return <div ref={box} className={isLive ? "tail is-live" : "tail"} role="group" aria-label={label} tabIndex={0} onScroll={onScroll}><div className="tail-inside">{children}</div></div>;
}

/** The reasoning of a model: expanded while it is streamed, collapsed after that. */
export function Reasoning({ text, isGrowing }: { text: string; isGrowing: boolean }) {
  const [chosen, choose] = useState<boolean>();
  const isOpen = chosen ?? isGrowing;
  const body = useId();
  return (
    <div className="reasoning">
      <button type="button" className="reasoning-head" aria-expanded={isOpen} aria-controls={body} onClick={() => choose(!isOpen)}>
        <Thought /><span className={isGrowing ? "is-alive" : undefined}>{isGrowing ? "Thinking" : "Thought"}</span><Turn />
      </button>
      <div id={body}>{isOpen && <Text text={text} growing={isGrowing} />}</div>
    </div>
  );
}

/** Parallel tool calls, side by side if there is room. */
export const Delegations = ({ children }: { children: ReactNode }) => <div className="runs">{children}</div>;

/** A tool call that started runs: its name, and their panels side by side if there is room. */
export function Delegation({ tool, note, error, children }: { tool: string; note?: ReactNode; error?: string; children: ReactNode }) {
  return (
    <div className="delegation" role="group" aria-label={tool}>
      <p className="delegation-head"><span className="name">{tool}</span>{note && <span>· {note}</span>}</p>
      <div className="runs">{children}</div>
      {error && <p className="run-error">{error}</p>}
    </div>
  );
}

const short = (text: string, limit = 80) => (text.length > limit ? `${text.slice(0, limit - 1).trimEnd()}…` : text);

/** The start of a Markdown text as plain text, on one line. */
const plain = (text: string) => text.slice(0, 600).replace(/^#{1,6} .*$/gm, "").replace(/[*`_>#]|^\s*[-•] /gm, "").replace(/\[([^\]]+)\]\([^)]*\)/g, "$1").replace(/\s+/g, " ").trim().slice(0, 320);
