// An opened specialist: a chat with it at its own URL.
import { useAgentChat } from "@cloudflare/ai-chat/react";
import { useAgent } from "agents/react";
import { type ReactNode, Suspense, useState } from "react";
import { Alert, Badge, Composer, Cross, Drawer, Log, Message, StatusBadge, Text, Thinking, Who, messagesOf, textOf, useTurn } from "../design";
import type { Lane } from "./panel";
import { FACES } from "./Perspectives";
import { Parts } from "./Parts";

type Props = { user: string; run: string; lane?: Lane; onClose: () => void };

export function Talk({ user, run, lane, onClose }: Props) {
  const who = lane?.who ?? "Unknown";
  const returnTo = () => [...document.querySelectorAll<HTMLElement>("main a[data-opens]")].find((link) => link.dataset.opens === run) ?? document.getElementById("composer");
  return (
    <Drawer label={`Conversation with the ${who}`} onClose={onClose} returnTo={returnTo} data-testid="drill-in-panel">
      <div className="drawer-head">
        <div className="drawer-bar">
          <div className="drawer-title">
            <span className="run-icon">{FACES[who]?.icon ?? <Who />}</span>
            <h2>{who}</h2>
            {lane && <StatusBadge status={lane.status} />}
          </div>
          <span className="spacer" />
          <button type="button" className="button is-quiet" aria-label="Close" title="Close (Esc)" onClick={onClose}><Cross /></button>
        </div>
      </div>
      {lane ? (
        <Suspense fallback={<div className="opening"><Thinking>Connecting to the {who}</Thinking></div>}>
          <Chat user={user} lane={lane} />
        </Suspense>
      ) : (
        <Missing>This specialist does not exist any more.</Missing>
      )}
    </Drawer>
  );
}

function Chat({ user, lane }: { user: string; lane: Lane }) {
  const [isConnected, setConnected] = useState(false);
  const agent = useAgent({
    agent: "Panel",
    name: user,
    sub: [{ agent: lane.who, name: lane.run }],
    onOpen: () => setConnected(true),
    onClose: () => setConnected(false),
    maxReconnectionDelay: 2000,
  });
  const chat = useAgentChat({ agent, getInitialMessages: messagesOf });
  const { isBusy, isCutOff, error, messages } = useTurn(agent, chat);
  const last = messages.at(-1);
  if (agent.connectionError) return <Missing>This specialist does not exist any more.</Missing>;
  return (
    <div className="drawer-main">
      <Log
        label={`Conversation with the ${lane.who}`}
        isBusy={isBusy}
        foot={<Composer id="composer-inside" isInside label={`Ask the ${lane.who}`} isBusy={isBusy} onSend={(text) => void chat.sendMessage({ text })} onStop={() => void chat.stop()} />}
      >
        {!isConnected && <Badge tone="warn" dot busy>connecting</Badge>}
        {messages.map((message, number) => {
          if (message.role !== "user") return <Message key={message.id} from={lane.who} kind="assistant" isBusy={isBusy && message === last}><Parts parts={message.parts} isGrowing={isBusy && message === last} /></Message>;
          if (number > 0) return <Message key={message.id} from="You" kind="user">{textOf(message)}</Message>;
          return <Message key={message.id} from="Panel" kind="given"><span className="by" aria-hidden="true">The panel asked</span><Text text={textOf(message)} /></Message>;
        })}
        {isBusy && last?.role === "user" && <Thinking>{isCutOff ? "Reconnecting" : "Working"}</Thinking>}
        {error && <Alert text={error.message} action="Try again" onAction={() => void chat.regenerate()} />}
      </Log>
    </div>
  );
}

const Missing = ({ children }: { children: ReactNode }) => (
  <div className="drawer-main"><div className="opening"><div className="missing" role="alert"><strong>Deleted</strong>{children}</div></div></div>
);
