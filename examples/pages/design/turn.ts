import { useEffect, useRef, useState } from "react";

type Socket = {
  addEventListener(type: "message", hear: (event: MessageEvent) => void): void;
  addEventListener(type: "open" | "close", hear: () => void): void;
  removeEventListener(type: "message", hear: (event: MessageEvent) => void): void;
  removeEventListener(type: "open" | "close", hear: () => void): void;
};
type Message = { id: string; parts: { type: string; toolCallId?: string }[] };
type Chat<Said> = {
  messages: Said[];
  status: string;
  error?: Error;
  isStreaming: boolean;
  isRecovering: boolean;
  isToolContinuation: boolean;
  clearError: () => void;
};

/**
 * The turn of a chat, as it is for those who watch it. While the server cannot be reached, what went on goes on, as far as anybody knows; that the connection was
 * lost is no error of the turn. It can be stopped meanwhile: the server is told as soon as it is back.
 */
export function useTurn<Said extends Message>(agent: Socket, chat: Chat<Said>) {
  const isTold = chat.status === "submitted" || chat.isStreaming || chat.isRecovering || chat.isToolContinuation;
  const [isCutOff, cutOff] = useState(false);
  const isOpen = useRef(true);
  const now = useRef({ isTold, isCutOff, clearError: chat.clearError });
  now.current = { isTold, isCutOff, clearError: chat.clearError };
  useEffect(() => {
    const onOpen = () => {
      isOpen.current = true;
      if (now.current.isTold) cutOff(false);
    };
    const onClose = () => {
      isOpen.current = false;
      if (now.current.isTold) cutOff(true);
    };
    const onMessage = ({ data }: MessageEvent) => {
      if (!now.current.isCutOff || typeof data !== "string" || !data.includes('"cf_agent_stream_resume_none"')) return;
      now.current.clearError(); // it ended while nobody could hear it
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
    if (isTold && isOpen.current) cutOff(false);
  }, [isTold]);
  const isBusy = isTold || isCutOff;
  return { isBusy, isCutOff, error: isBusy ? undefined : chat.error, messages: useSteady(chat.messages, isBusy) };
}

/** What was said, as it was, while it is told again from its beginning: nothing vanishes that somebody reads or has the focus on. */
function useSteady<Said extends Message>(messages: Said[], isBusy: boolean): Said[] {
  const before = useRef(messages);
  const shown = messages.map(toldOnce).map((message) => {
    const known = isBusy && before.current.find(({ id }) => id === message.id);
    return known && known.parts.length > message.parts.length ? known : message;
  });
  before.current = shown;
  return shown;
}

/** A message without what was told before it was told again: the hooks may put both into one, and two calls with one id cannot be drawn. */
function toldOnce<Said extends Message>(message: Said): Said {
  const ids = message.parts.map(({ toolCallId }) => toolCallId);
  const again = ids.lastIndexOf(ids.find(Boolean));
  if (again < 0 || ids.indexOf(ids[again]) === again) return message;
  const from = message.parts.slice(0, again).map(({ type }) => type).lastIndexOf("step-start");
  return { ...message, parts: message.parts.slice(Math.max(from, 0)) };
}
