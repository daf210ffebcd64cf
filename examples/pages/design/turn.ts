import { useEffect, useRef, useState } from "react";

type Socket = {
  addEventListener(type: "message", listener: (event: MessageEvent) => void): void;
  addEventListener(type: "open" | "close", listener: () => void): void;
  removeEventListener(type: "message", listener: (event: MessageEvent) => void): void;
  removeEventListener(type: "open" | "close", listener: () => void): void;
};
type Message = { id: string; parts: { type: string; toolCallId?: string }[] };
type Chat<M> = {
  messages: M[];
  status: string;
  error?: Error;
  isStreaming: boolean;
  isRecovering: boolean;
  isToolContinuation: boolean;
  clearError: () => void;
};

/**
 * The status of a turn. While the server is unreachable, a running turn counts as running: a lost connection is not an error of the turn.
 * The user can stop it in that state; the stop is sent after the reconnect.
 */
export function useTurn<M extends Message>(agent: Socket, chat: Chat<M>) {
  const isRunning = chat.status === "submitted" || chat.isStreaming || chat.isRecovering || chat.isToolContinuation;
  const [isCutOff, cutOff] = useState(false);
  const isOpen = useRef(true);
  const now = useRef({ isRunning, isCutOff, clearError: chat.clearError });
  now.current = { isRunning, isCutOff, clearError: chat.clearError };
  useEffect(() => {
    const onOpen = () => {
      isOpen.current = true;
      if (now.current.isRunning) cutOff(false);
    };
    const onClose = () => {
      isOpen.current = false;
      if (now.current.isRunning) cutOff(true);
    };
    const onMessage = ({ data }: MessageEvent) => {
      if (!now.current.isCutOff || typeof data !== "string" || !data.includes('"cf_agent_stream_resume_none"')) return;
      now.current.clearError(); // the turn ended while the page was disconnected
      cutOff(false);
    };
    agent.addEventListener("open", onOpen);
    agent.addEventListener("close", onClose);
    agent.addEventListener("message", onMessage);
    return () => {
      agent.removeEventListener("open", onOpen);
      agent.removeEventListener("close", onClose);
      agent.removeEventListener("message", onMessage);
    };
  }, [agent]);
  useEffect(() => {
    if (isRunning && isOpen.current) cutOff(false);
  }, [isRunning]);
  const isBusy = isRunning || isCutOff;
  return { isBusy, isCutOff, error: isBusy ? undefined : chat.error, messages: useSteady(chat.messages, isBusy) };
}

/** The messages. While the server replays a message from its start, keep the longer version, so that nothing the user reads or has focused disappears. */
function useSteady<M extends Message>(messages: M[], isBusy: boolean): M[] {
  const before = useRef(messages);
  const stable = messages.map(withoutReplay).map((message) => {
    const known = isBusy && before.current.find(({ id }) => id === message.id);
    return known && known.parts.length > message.parts.length ? known : message;
  });
  before.current = stable;
  return stable;
}

/** A message without the parts that a replay repeats. The hooks may keep both copies, and React cannot render two tool calls with one id. */
function withoutReplay<M extends Message>(message: M): M {
  const ids = message.parts.map(({ toolCallId }) => toolCallId);
  const replay = ids.lastIndexOf(ids.find(Boolean));
  if (replay < 0 || ids.indexOf(ids[replay]) === replay) return message;
  const from = message.parts.slice(0, replay).map(({ type }) => type).lastIndexOf("step-start");
  return { ...message, parts: message.parts.slice(Math.max(from, 0)) };
}
