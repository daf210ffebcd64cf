import { getToolPartState, useAgentChat } from "@cloudflare/ai-chat/react";
import { useAgent } from "agents/react";
import { type UIMessage, getToolName, isToolUIPart } from "ai";
import { Fragment, useEffect, useRef, useState } from "react";
import { Again, Alert, Badge, Bell, Bin, Composer, Empty, Log, Message, Page, Picture, SureButton, Text, Thinking, ToolCard, textOf, useTurn } from "../design";
import { useBranches, Versions } from "./Versions";

type Reminder = { id: string; what: string; due: number };
type State = { model: string; reminders: Reminder[] };

const SUGGESTIONS = ["Remind me to stretch in 20 seconds", "What time is it?", "Tell me a story", "What can you do?"];

// --8<-- [start:hooks]
// Tools that run in the browser. They are sent with every message, and the model can call them like any other tool.
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
  const outputs = useRef<ToolOutputs>({});
  const chat = useAgentChat({
    agent,
    tools: TOOLS,
    onToolCall: async ({ toolCall, addToolOutput }) => {
      const tool = TOOLS[toolCall.toolName as keyof typeof TOOLS];
      if (!tool) return;
      const output = { toolCallId: toolCall.toolCallId, toolName: toolCall.toolName, output: await tool.execute() };
      outputs.current[output.toolCallId] = output;
      addToolOutput(output);
    },
  });
  useResend(agent, outputs.current, chat.addToolOutput);
  const { isBusy, isCutOff, error, messages } = useTurn(agent, chat);
  // --8<-- [end:hooks]
  const last = messages.at(-1);
  const branches = useBranches(agent, isBusy || !isConnected ? null : messages.map(({ id }) => id).join());
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
            <p className="hint">Enter sends, Shift+Enter adds a line, Esc stops.</p>
          </>
        }
      >
        {messages.length === 0 && !isBusy && (
          <Empty title="What shall I remember for you?" suggestions={SUGGESTIONS} onSuggestion={(text) => void chat.sendMessage({ text })}>
            I store reminders, and write to you when they are due. Our messages are stored: reload the page, open it twice, or kill the server.
          </Empty>
        )}
        {messages.map((message) => (
          <Fragment key={message.id}>
            <ChatMessage message={message} isGrowing={isBusy && message === last} onAnswer={(id, approved) => void chat.addToolApprovalResponse({ id, approved })} />
            <Versions agent={agent} id={message.id} branches={branches} disabled={isBusy} />
          </Fragment>
        ))}
        {isBusy && !speaks(last) && <Thinking>{isCutOff ? "Reconnecting" : chat.isRecovering ? "Resuming after an interruption" : "Thinking"}</Thinking>}
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

type ToolOutputs = Record<string, { toolCallId: string; toolName: string; output: unknown }>;

/** After a reconnect, send the results of browser tools again if the agent still waits for them: it may have been killed before it received them. */
function useResend(agent: Pick<ReturnType<typeof useAgent>, "addEventListener" | "removeEventListener">, outputs: ToolOutputs, send: (output: ToolOutputs[string]) => void): void {
  const latest = useRef(send);
  latest.current = send;
  useEffect(() => {
    const onMessage = ({ data }: MessageEvent) => {
      if (typeof data !== "string" || !data.includes('"cf_agent_chat_messages"')) return;
      const { type, connect, messages } = JSON.parse(data) as { type: string; connect?: boolean; messages: UIMessage[] };
      if (type !== "cf_agent_chat_messages" || !connect) return;
      const waiting = messages.at(-1)?.parts.filter((part) => isToolUIPart(part) && part.state === "input-available") ?? [];
      for (const part of waiting) if (isToolUIPart(part) && part.toolCallId in outputs) latest.current(outputs[part.toolCallId]);
    };
    agent.addEventListener("message", onMessage);
    return () => agent.removeEventListener("message", onMessage);
  }, [agent]);
}

// --8<-- [start:message]
function ChatMessage({ message, isGrowing, onAnswer }: { message: UIMessage; isGrowing: boolean; onAnswer: (id: string, approved: boolean) => void }) {
  if (message.role === "user") {
    const isReminder = (message.metadata as { from?: string } | undefined)?.from === "reminder";
    if (isReminder) return <Message from="Reminder" kind="notice"><Bell />{textOf(message)}</Message>;
    const files = message.parts.filter((part) => part.type === "file");
    return <Message from="You" kind="user">{files.map((part, at) => <Picture key={at} part={part} />)}{textOf(message)}</Message>;
  }
  return (
    <Message from="Assistant" kind="assistant" isBusy={isGrowing}>
      {message.parts.map((part, at) => {
        if (part.type === "text") return <Text key={at} text={part.text} growing={isGrowing && at === message.parts.length - 1} />;
        if (part.type === "file") return <Picture key={at} part={part} />;
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

// --8<-- [end:message]
function Reminders({ reminders }: { reminders: Reminder[] }) {
  const [now, setNow] = useState(() => Date.now() / 1000);
  useEffect(() => {
    if (reminders.length === 0) return;
    setNow(Date.now() / 1000);
    const timer = setInterval(() => setNow(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
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


/** Whether text is being streamed, so that the page needs no “Thinking”. */
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
