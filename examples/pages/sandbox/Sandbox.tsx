import { getToolPartState, useAgentChat } from "@cloudflare/ai-chat/react";
import { type UIMessage, isToolUIPart } from "ai";
import { Alert, Badge, Bin, Composer, Empty, Hand, Log, Message, Page, SureButton, Text, Thinking, messagesOf, textOf, useTurn } from "../design";
import { CodeCard } from "./CodeCard";
import { type CodeRun, otherPage, useLab } from "./lab";
import { Side } from "./Side";

const SUGGESTIONS = ["Which city pays most?", "How many are on each plan?", "What is the median in Rome?", "Delete all customers in Rome", "Read the password file"];

/** The conversation, with the code of the model and its results. */
export function Sandbox({ name }: { name: string }) {
  const { agent, state, isConnected } = useLab(name);
  const chat = useAgentChat({ agent, getInitialMessages: messagesOf });
  const { isBusy, isCutOff, error, messages } = useTurn(agent, chat);
  const last = messages.at(-1);
  const isPaused = state?.runs.some(({ status }) => status === "paused");
  return (
    <Page
      title="Sandbox"
      head={
        <>
          <Badge tone={isConnected ? "good" : "warn"} dot busy={!isConnected}><span className="unseen-narrow">{isConnected ? "connected" : "connecting"}</span></Badge>
          {state && <span className="only-wide"><Badge>{state.model}</Badge></span>}
          <span className="spacer" />
          <a className="button is-quiet" href={otherPage()}>Ten ways out</a>
          <SureButton label="Clear" sure="Clear all?" icon={<Bin />} disabled={messages.length === 0} onSure={() => chat.clearHistory()} />
        </>
      }
      side={{ title: "The sandbox", icon: <Hand />, count: state?.runs.length ?? 0, children: <Side state={state} /> }}
    >
      <Log
        label="Conversation"
        isBusy={isBusy}
        foot={
          <>
            <Composer label="Ask about the customers" isBusy={isBusy} onSend={(text) => void chat.sendMessage({ text })} onStop={() => void chat.stop()} />
            <p className="hint">Enter sends, Esc stops. While code waits, kill the server and start it again.</p>
          </>
        }
      >
        {messages.length === 0 && !isBusy && (
          <Empty title="I answer with Python" suggestions={SUGGESTIONS} onSuggestion={(text) => void chat.sendMessage({ text })}>
            My code runs in a sandbox without files and network. It can call one function, which queries the database.
          </Empty>
        )}
        {messages.map((message) =>
          message.role === "user" ? (
            <Message key={message.id} from="You" kind="user">{textOf(message)}</Message>
          ) : (
            <Message key={message.id} from="Assistant" kind="assistant" isBusy={isBusy && message === last}>
              <Parts message={message} isGrowing={isBusy && message === last} runs={state?.runs ?? []} />
            </Message>
          ),
        )}
        {isBusy && !speaks(last) && <Thinking>{isCutOff ? "Reconnecting" : isPaused ? "The code waits for the database" : chat.isRecovering ? "Resuming after an interruption" : "Thinking"}</Thinking>}
        {error && <Alert text={error.message} action="Try again" onAction={() => void chat.regenerate()} />}
      </Log>
    </Page>
  );
}

function Parts({ message, isGrowing, runs }: { message: UIMessage; isGrowing: boolean; runs: CodeRun[] }) {
  return message.parts.map((part, number) => {
    if (part.type === "text") return part.text && <Text key={number} text={part.text} growing={isGrowing && number === message.parts.length - 1} />;
    if (!isToolUIPart(part)) return null;
    const code = (part.input as { code?: string } | undefined)?.code ?? "";
    const run = runs.find(({ id }) => id === part.toolCallId);
    const title = getToolPartState(part) === "error" && !run ? "Python that did not run" : "Python";
    return <CodeCard key={part.toolCallId} title={title} code={run?.code ?? code} run={run} />;
  });
}

const speaks = (message?: UIMessage) => message?.role === "assistant" && message.parts.at(-1)?.type === "text";
