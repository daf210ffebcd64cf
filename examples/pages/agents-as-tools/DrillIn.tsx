// An opened helper: a conversation with the helper itself, at its own URL and at any depth.
import { type UIMessage } from "ai";
import { type ReactNode, Suspense, use, useEffect, useRef, useState } from "react";
import { Alert, Badge, Breadcrumbs, Chain, Composer, Cross, Drawer, Log, Message, StatusBadge, Text, Thinking, Who, textOf } from "../design";
import { type Run, type Runs, useConversation } from "./conversation";
import { HELPERS, Parts, Scene, speaks } from "./Parts";
import { type Step, hrefOf } from "./place";

type Props = { user: string; at: Step[]; runs: Runs; isParentBusy: boolean };

export function DrillIn({ user, at, runs, isParentBusy }: Props) {
  const { open } = use(Scene);
  const opened = useRef(at);
  const last = at.at(-1)!;
  useFocusOn(at);
  /** Return the link that opened the panel, or the closest one that still exists. */
  const returnTo = () => {
    const links = [...document.querySelectorAll<HTMLElement>("main a[data-opens]")];
    const steps = [...opened.current].reverse();
    return steps.map(({ name }) => links.find((link) => link.dataset.opens === name)).find(Boolean) ?? document.getElementById("composer");
  };
  return (
    <Drawer label={`Conversation with ${last.agent}`} onClose={() => open([])} returnTo={returnTo} data-testid="drill-in-panel" data-helper-type={last.agent} data-helper-id={last.name}>
      <Level user={user} at={at} depth={1} parent="Assistant" runs={runs} isParentBusy={isParentBusy} />
    </Drawer>
  );
}

type LevelProps = Props & { depth: number; parent: string };

/** One level of the path, with the run as its parent sees it. The page connects to all levels, and shows only the last. */
function Level({ user, at, depth, parent, runs, isParentBusy }: LevelProps) {
  const step = at[depth - 1];
  const run = runs.runsById[step.name] as Run | undefined;
  const agent = run?.agentType ?? step.agent; // the class of the run, even if the URL names another
  const isLast = depth === at.length;
  // Outside the Suspense boundary: a focused element must not be unmounted.
  const head = isLast && <Head at={at} run={run} parent={{ name: parent, isBusy: isParentBusy }} />;
  const name = at.at(-1)!.agent;
  if (!(agent in HELPERS)) return <>{head || <Head at={at} />}<Missing name={name}><strong>Unknown helper class: {agent}</strong>This page does not support it.</Missing></>;
  const waiting = <>{!isLast && <Head at={at} />}<div className="opening"><Thinking>Connecting to {agent}</Thinking></div></>;
  const path = [...at.slice(0, depth - 1), { agent, name: step.name }];
  return (
    <>
      {head}
      <Suspense key={`${agent}:${step.name}`} fallback={waiting}>
        <Helper user={user} at={at} path={path} parent={parent} />
      </Suspense>
    </>
  );
}

function Helper({ user, at, path, parent }: { user: string; at: Step[]; path: Step[]; parent: string }) {
  const { agent: name } = path.at(-1)!;
  const { agent, runs, chat, turn, isConnected } = useConversation(user, path, () => undefined);
  const { isBusy, isCutOff, error, messages } = turn;
  const depth = path.length;
  const isLast = depth === at.length;
  if (agent.connectionError) return <>{!isLast && <Head at={at} />}<Missing name={at.at(-1)!.agent}><strong>This run was deleted</strong>This helper does not exist any more.</Missing></>;
  const last = messages.at(-1);
  return (
    <>
      <div className="drawer-main" hidden={!isLast}>
        <Log
          label={`Conversation with ${name}`}
          isBusy={isBusy}
          foot={<Composer id={`composer-${depth}`} isInside label={`Ask the ${name}`} isBusy={isBusy} onSend={(text) => void chat.sendMessage({ text })} onStop={() => void chat.stop()} />}
        >
          {!isConnected && <Badge tone="warn" dot busy>connecting</Badge>}
          {messages.map((message, number) => (
            <ChatMessage key={message.id} message={message} from={number === 0 ? parent : "You"} name={name} isGrowing={isBusy && message === last} runs={runs} at={path} />
          ))}
          {isBusy && !speaks(last) && <Thinking>{isCutOff ? "Reconnecting" : chat.isRecovering ? "Resuming after an interruption" : "Working"}</Thinking>}
          {error && <Alert text={error.message} action="Try again" onAction={() => void chat.regenerate()} />}
        </Log>
      </div>
      {!isLast && <Level user={user} at={at} depth={depth + 1} parent={name} runs={runs} isParentBusy={isBusy} />}
    </>
  );
}

type ChatMessageProps = { message: UIMessage; from: string; name: string; isGrowing: boolean; runs: Runs; at: Step[] };

function ChatMessage({ message, from, name, isGrowing, runs, at }: ChatMessageProps) {
  if (message.role === "user" && from === "You") return <Message from="You" kind="user">{textOf(message)}</Message>;
  if (message.role === "user") return <Message from={from} kind="given"><span className="by" aria-hidden="true">{from} asked</span><Text text={textOf(message)} /></Message>;
  return (
    <Message from={name} kind="assistant" isBusy={isGrowing}>
      <Parts parts={message.parts} isGrowing={isGrowing} at={at} runs={runs} />
    </Message>
  );
}

/** The breadcrumbs, the status of the run, and whether its parent is still busy. */
function Head({ at, run, parent }: { at: Step[]; run?: Run; parent?: { name: string; isBusy: boolean } }) {
  const { open } = use(Scene);
  const last = at.at(-1)!;
  const crumbs = at.map(({ agent, name }, number) => ({ key: name, label: agent, href: hrefOf(at.slice(0, number + 1)), onOpen: () => open(at.slice(0, number + 1)) }));
  return (
    <div className="drawer-head">
      <div className="drawer-bar">
        <Breadcrumbs crumbs={[{ key: "", label: "Assistant", href: hrefOf([]), onOpen: () => open([]) }, ...crumbs]} />
        <CopyLink />
        <button type="button" className="button is-quiet" aria-label="Close" title="Close (Esc)" onClick={() => open([])}><Cross /></button>
      </div>
      <div className="drawer-title">
        <span className="run-icon">{HELPERS[last.agent]?.icon ?? <Who />}</span>
        <h2>{run?.agentType ?? last.agent}</h2>
        {run && <StatusBadge status={run.status} />}
        {run && parent && <span className="with" data-testid="parent-turn" data-parent-busy={parent.isBusy}><span className={parent.isBusy ? "status-dot is-busy" : "status-dot"} />{parent.name} {parent.isBusy ? "is still working" : "has finished its turn"}</span>}
      </div>
    </div>
  );
}

function CopyLink() {
  const [isCopied, setCopied] = useState(false);
  if (!navigator.clipboard) return null;
  const copy = () => void navigator.clipboard.writeText(location.href).then(() => setCopied(true));
  return (
    <button type="button" className="button is-quiet" aria-label="Copy link" title="Copy a link to this conversation" onClick={copy} onBlur={() => setCopied(false)}>
      {isCopied ? <span role="status">Copied</span> : <Chain />}
    </button>
  );
}

/** The reason why there is no conversation, with a disabled composer. */
function Missing({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div className="drawer-main">
      <div className="opening"><div className="missing" role="alert">{children}</div></div>
      <div className="composer"><Composer id="composer-missing" isInside disabled label={`Ask the ${name}`} isBusy={false} onSend={() => undefined} onStop={() => undefined} /></div>
    </div>
  );
}

/** Focus the opened helper; on the way back, the link that opened it. */
function useFocusOn(at: Step[]): void {
  const before = useRef<Step[]>([]);
  const key = at.map(({ name }) => name).join("/");
  useEffect(() => {
    const left = before.current.length > at.length ? before.current[at.length].name : undefined;
    before.current = at;
    const links = [...document.querySelectorAll<HTMLElement>("dialog [data-opens]")];
    const from = links.find((link) => link.dataset.opens === left && link.checkVisibility());
    (from ?? document.querySelector<HTMLElement>("dialog"))?.focus();
  }, [key]);
}
