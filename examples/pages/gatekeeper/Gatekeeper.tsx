import { useAgentChat } from "@cloudflare/ai-chat/react";
import { useAgent, useAgentToolEvents } from "agents/react";
import { useEffect, useRef, useState } from "react";
import { Alert, Badge, Bin, Composer, Empty, Hand, Log, Message, Out, Page, SureButton, Thinking, messagesOf, textOf, useTurn } from "../design";
import { Books, Queue } from "./Gate";
import { type State, useGate } from "./gate";
import { type Part, Parts, speaks } from "./Parts";

const SUGGESTIONS = ["Move Ada to Paris", "Delete all customers in New York", "Tidy up the customers", "Delete Ada, and do not ask"];

export function Gatekeeper({ name }: { name: string }) {
  const [state, setState] = useState<State>();
  const [isConnected, setConnected] = useState(false);
  const agent = useAgent<State>({ agent: "Gatekeeper", name, onStateUpdate: setState, onOpen: () => setConnected(true), onClose: () => setConnected(false), maxReconnectionDelay: 2000 });
  const runs = useAgentToolEvents<Part>({ agent });
  const chat = useAgentChat({ agent, getInitialMessages: messagesOf });
  const gate = useGate(agent);
  const { isBusy, isCutOff, error, messages } = useTurn(agent, chat);
  const last = messages.at(-1);
  const waiting = gate.waiting?.length ?? 0;
  useClear(agent, runs.resetLocalState);
  const gateOnly = new URLSearchParams(location.search);
  gateOnly.set("gate", "");
  return (
    <Page
      title="Gatekeeper"
      head={
        <>
          <Badge tone={isConnected ? "good" : "warn"} dot busy={!isConnected}><span className="unseen-narrow">{isConnected ? "connected" : "connecting"}</span></Badge>
          {state && <span className="only-wide"><Badge>{state.model}</Badge></span>}
          <span className="spacer" />
          <a className="button is-quiet only-wide" href={`?${gateOnly}`} target="_blank" rel="noopener"><Out />Open the gate in a new tab</a>
          <SureButton label="Clear" sure="Clear all?" icon={<Bin />} disabled={messages.length === 0} onSure={() => (chat.clearHistory(), runs.resetLocalState())} />
        </>
      }
      side={{
        title: "The gate",
        icon: <Hand />,
        count: waiting,
        children: <div className="books"><Queue name={name} gate={gate} /><Books state={state} /></div>,
      }}
    >
      <Log
        label="Conversation"
        isBusy={isBusy}
        foot={
          <>
            <Composer label="Ask for a change" isBusy={isBusy} onSend={(text) => void chat.sendMessage({ text })} onStop={() => void chat.stop()} />
            <p className="hint">Enter sends, Esc stops. A new message withdraws open proposals.</p>
          </>
        }
      >
        {messages.length === 0 && !isBusy && (
          <Empty title="I propose, you decide" suggestions={SUGGESTIONS} onSuggestion={(text) => void chat.sendMessage({ text })}>
            I can read the customers, but I cannot change them. Every change that I or my helpers propose waits at the gate until you decide.
          </Empty>
        )}
        {messages.map((message) =>
          message.role === "user" ? (
            <Message key={message.id} from="You" kind="user">{textOf(message)}</Message>
          ) : (
            <Message key={message.id} from="Assistant" kind="assistant" isBusy={isBusy && message === last}>
              <Parts name={name} parts={message.parts} isGrowing={isBusy && message === last} at={[]} runs={runs} />
            </Message>
          ),
        )}
        {isBusy && !speaks(last) && <Thinking>{isCutOff ? "Reconnecting" : waiting ? "Waiting at the gate" : chat.isRecovering ? "Resuming after an interruption" : "Thinking"}</Thinking>}
        {error && <Alert text={error.message} action="Try again" onAction={() => void chat.regenerate()} />}
      </Log>
    </Page>
  );
}

/** Forget the helpers when another page clears the conversation. */
function useClear(agent: Pick<ReturnType<typeof useAgent>, "addEventListener" | "removeEventListener">, forget: () => void): void {
  const latest = useRef(forget);
  latest.current = forget;
  useEffect(() => {
    const onMessage = ({ data }: MessageEvent) => typeof data === "string" && data.includes('"cf_agent_chat_clear"') && latest.current();
    agent.addEventListener("message", onMessage);
    return () => agent.removeEventListener("message", onMessage);
  }, [agent]);
}
