import { getToolPartState, useAgentChat } from "@cloudflare/ai-chat/react";
import { useAgent } from "agents/react";
import { type UIMessage, getToolName, isToolUIPart } from "ai";
import { useEffect, useRef, useState } from "react";
import { Again, Alert, Badge, Bell, Bin, Composer, Empty, Log, Message, Page, SureButton, Text, Thinking, ToolCard, textOf, useTurn } from "../design";

type Reminder = { id: string; what: string; due: number };
type State = { model: string; reminders: Reminder[] };

const WISHES = ["Remind me to stretch in 20 seconds", "What time is it?", "Tell me a story", "What can you do?"];

// --8<-- [start:hooks]
// What the page can do for the agent. The agent is told of it with every message, and asks for it like for any tool.
const TOOLS = {
  browserClock: {
    description: "Return the time and the time zone of the user's browser",
    parameters: { type: "object" as const, properties: {} },
    execute: async () => ({ zone: Intl.DateTimeFormat().resolvedOptions().timeZone, now: localTime(new Date()) }),
  },
};

export function Chat({ name }: { name: string }) {
  const [state, setState] = useState<State>();
  const [isConnected, setConnected] = useState(false);
  const agent = useAgent<State>({
    agent: "Assistant",
    name,
    onStateUpdate: setState,
    onOpen: () => setConnected(true),
    onClose: () => setConnected(false),
    maxReconnectionDelay: 2000,
  });
  const given = useRef<Given>({});
  const chat = useAgentChat({
    agent,
    tools: TOOLS,
    onToolCall: async ({ toolCall, addToolOutput }) => {
      const tool = TOOLS[toolCall.toolName as keyof typeof TOOLS];
      if (!tool) return;
      const answer = { toolCallId: toolCall.toolCallId, toolName: toolCall.toolName, output: await tool.execute() };
      given.current[answer.toolCallId] = answer;
      addToolOutput(answer);
    },
  });
  useAgainIfUnheard(agent, given.current, chat.addToolOutput);
  const { isBusy, isCutOff, error, messages } = useTurn(agent, chat);
  // --8<-- [end:hooks]
  const last = messages.at(-1);
  const reminders = state?.reminders ?? [];

  return (
    <Page
      title="Assistant"
      head={
        <>
          <Badge tone={isConnected ? "good" : "warn"} dot busy={!isConnected}><span className="unseen-narrow">{isConnected ? "connected" : "connecting"}</span></Badge>
          {state && <span className="only-wide"><Badge>{state.model}</Badge></span>}
          <span className="spacer" />
          <SureButton label="Clear" sure="Clear all?" icon={<Bin />} disabled={messages.length === 0} onSure={chat.clearHistory} />
        </>
      }
      side={{ title: "Reminders", icon: <Bell />, count: reminders.length, children: <Reminders reminders={reminders} /> }}
    >
      <Log
        label="Conversation"
        isBusy={isBusy}
        foot={
          <>
            <Composer label="Say something" isBusy={isBusy} onSend={(text) => void chat.sendMessage({ text })} onStop={() => void chat.stop()} />
            <p className="hint">Enter sends, Shift+Enter begins a new line, Esc stops.</p>
          </>
        }
      >
        {messages.length === 0 && !isBusy && (
          <Empty title="What shall I remember for you?" wishes={WISHES} onWish={(text) => void chat.sendMessage({ text })}>
            I keep reminders, and ring when they are due. What we say stays here: reload the page, open it twice, or kill the server.
          </Empty>
        )}
        {messages.map((message) => (
          <Said key={message.id} message={message} isGrowing={isBusy && message === last} onAnswer={(id, approved) => void chat.addToolApprovalResponse({ id, approved })} />
        ))}
        {isBusy && !speaks(last) && <Thinking>{isCutOff ? "Connecting again" : chat.isRecovering ? "Going on where it was interrupted" : "Thinking"}</Thinking>}
        {error && <Alert text={error.message} action="Try again" onAction={() => void chat.regenerate()} />}
        {!isBusy && !error && isFinished(last) && (
          <div className="message-foot">
            <button type="button" className="button is-quiet" onClick={() => void chat.regenerate()}><Again />Regenerate</button>
          </div>
        )}
      </Log>
    </Page>
  );
}

type Given = Record<string, { toolCallId: string; toolName: string; output: unknown }>;

/** Give the agent again what it had asked for, if it still waits for it when it is back: it may have been killed before it heard the answer. */
function useAgainIfUnheard(agent: Pick<ReturnType<typeof useAgent>, "addEventListener" | "removeEventListener">, given: Given, give: (answer: Given[string]) => void): void {
  const giveNow = useRef(give);
  giveNow.current = give;
  useEffect(() => {
    const onMessage = ({ data }: MessageEvent) => {
      if (typeof data !== "string" || !data.includes('"cf_agent_chat_messages"')) return;
      const { type, connect, messages } = JSON.parse(data) as { type: string; connect?: boolean; messages: UIMessage[] };
      if (type !== "cf_agent_chat_messages" || !connect) return;
      const waiting = messages.at(-1)?.parts.filter((part) => isToolUIPart(part) && part.state === "input-available") ?? [];
      for (const part of waiting) if (isToolUIPart(part) && part.toolCallId in given) giveNow.current(given[part.toolCallId]);
    };
    agent.addEventListener("message", onMessage);
    return () => agent.removeEventListener("message", onMessage);
  }, [agent]);
}

// --8<-- [start:said]
function Said({ message, isGrowing, onAnswer }: { message: UIMessage; isGrowing: boolean; onAnswer: (id: string, approved: boolean) => void }) {
  if (message.role === "user") {
    const isReminder = (message.metadata as { from?: string } | undefined)?.from === "reminder";
    if (isReminder) return <Message from="Reminder" kind="notice"><Bell />{textOf(message)}</Message>;
    return <Message from="You" kind="user">{textOf(message)}</Message>;
  }
  return (
    <Message from="Assistant" kind="assistant" isBusy={isGrowing}>
      {message.parts.map((part, at) => {
        if (part.type === "text") return <Text key={at} text={part.text} growing={isGrowing && at === message.parts.length - 1} />;
        if (!isToolUIPart(part)) return null;
        const tool = getToolName(part);
        return (
          <ToolCard
            key={part.toolCallId}
            name={tool}
            where={tool in TOOLS ? "in your browser" : undefined}
            state={getToolPartState(part)}
            input={part.input}
            output={part.state === "output-available" ? part.output : undefined}
            error={part.state === "output-error" ? part.errorText : undefined}
            onAnswer={part.state === "approval-requested" ? (approved) => onAnswer(part.approval.id, approved) : undefined}
          />
        );
      })}
    </Message>
  );
}

// --8<-- [end:said]
function Reminders({ reminders }: { reminders: Reminder[] }) {
  const [now, setNow] = useState(() => Date.now() / 1000);
  useEffect(() => {
    if (reminders.length === 0) return;
    setNow(Date.now() / 1000);
    const ticking = setInterval(() => setNow(Date.now() / 1000), 1000);
    return () => clearInterval(ticking);
  }, [reminders]);
  if (reminders.length === 0) return <p className="note">None yet. Say “remind me to water the plants in 2 minutes”.</p>;
  return (
    <ul className="items">
      {reminders.map(({ id, what, due }) => (
        <li key={id} className="item"><span>{what}</span><time dateTime={new Date(due * 1000).toISOString()}>{remaining(due - now)}</time></li>
      ))}
    </ul>
  );
}


/** Whether an answer is to be seen growing, so that nobody needs to be told that it will come. */
const speaks = (message?: UIMessage) => message?.role === "assistant" && message.parts.at(-1)?.type === "text";

const isFinished = (message?: UIMessage) =>
  message?.role === "assistant" && !message.parts.some((part) => isToolUIPart(part) && part.state === "approval-requested");

function remaining(seconds: number): string {
  if (seconds <= 0) return "now";
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds % 60)];
  return `in ${hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min ${rest} s` : `${rest} s`}`;
}

/** The time as the user's clock shows it, as ISO 8601 without a zone. */
function localTime(now: Date): string {
  return new Date(now.getTime() - now.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
