import type { UIMessage } from "ai";
import { useEffect, useMemo } from "react";
import { Alert, Badge, Bin, Composer, Empty, Log, Message, Page, SureButton, Thinking, textOf } from "../design";
import { useConversation } from "./conversation";
import { DrillIn } from "./DrillIn";
import { Parts, Scene, speaks } from "./Parts";
import { usePlace } from "./place";

const SUGGESTIONS = ["Research the actor model", "Compare Rust and Go", "How do I add full-text search?", "Compare Rust and something that fails"];

export function Assistant() {
  const { user, at, go } = usePlace();
  const { agent, runs, chat, turn, clear, isConnected } = useConversation(user, [], () => go([]));
  const { isBusy, isCutOff, error, messages } = turn;
  const scene = useMemo(() => ({ user, open: go }), [user, go]);
  const working = Object.values(runs.runsById).filter(({ status }) => status === "running").length;
  const last = messages.at(-1);
  useStopKey(isBusy, () => void chat.stop());

  return (
    <Scene value={scene}>
      <Page
        title="Assistant"
        head={
          <>
            <Badge tone={isConnected ? "good" : "warn"} dot busy={!isConnected}><span className="unseen-narrow">{isConnected ? "connected" : "connecting"}</span></Badge>
            {agent.state && <span className="only-wide"><Badge>{agent.state.model}</Badge></span>}
            <span className="spacer" />
            <SureButton label="Clear" sure="Clear all?" icon={<Bin />} disabled={messages.length === 0} onSure={clear} />
          </>
        }
      >
        <Log
          label="Conversation"
          isBusy={isBusy}
          foot={
            <>
              <Composer label="Ask for something" isBusy={isBusy} onSend={(text) => void chat.sendMessage({ text })} onStop={() => void chat.stop()} />
              <p className="hint">Enter sends, Shift+Enter adds a line, Esc stops all helpers.</p>
            </>
          }
        >
          {messages.length === 0 && !isBusy && (
            <Empty title="What shall we find out?" suggestions={SUGGESTIONS} onSuggestion={(text) => void chat.sendMessage({ text })}>
              I have helpers: some do research, one makes plans. Watch them work below my messages, and open one to talk to it.
            </Empty>
          )}
          {messages.map((message) => <ChatMessage key={message.id} message={message} isGrowing={isBusy && message === last} runs={runs} />)}
          {isBusy && !speaks(last) && <Thinking>{isCutOff ? "Reconnecting" : chat.isRecovering ? "Resuming after an interruption" : waitingFor(working)}</Thinking>}
          {error && <Alert text={error.message} action="Try again" onAction={() => void chat.regenerate()} />}
        </Log>
      </Page>
      {at.length > 0 && <DrillIn user={user} at={at} runs={runs} isParentBusy={isBusy} />}
    </Scene>
  );
}

function ChatMessage({ message, isGrowing, runs }: { message: UIMessage; isGrowing: boolean; runs: ReturnType<typeof useConversation>["runs"] }) {
  if (message.role === "user") return <Message from="You" kind="user">{textOf(message)}</Message>;
  return (
    <Message from="Assistant" kind="assistant" isBusy={isGrowing}>
      <Parts parts={message.parts} isGrowing={isGrowing} at={[]} runs={runs} />
    </Message>
  );
}

/** Escape stops the turn, wherever the focus is, unless it closes a dialog. */
function useStopKey(isBusy: boolean, stop: () => void): void {
  useEffect(() => {
    if (!isBusy) return;
    const onKey = (event: KeyboardEvent) => event.key === "Escape" && !event.defaultPrevented && !document.querySelector("dialog[open]") && stop();
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  });
}

const waitingFor = (working: number) => (working === 0 ? "Thinking" : working === 1 ? "Waiting for a helper" : `Waiting for ${working} helpers`);
