// The hooks of a conversation with the assistant, or with a helper at its own URL.
import { useAgentChat } from "@cloudflare/ai-chat/react";
import { useAgent, useAgentToolEvents } from "agents/react";
import type { UIMessage } from "ai";
import { useEffect, useRef, useState } from "react";
import { messagesOf, useTurn } from "../design";
import type { Step } from "./place";

export type Part = UIMessage["parts"][number];
export type Runs = ReturnType<typeof useAgentToolEvents<Part>>;
export type Run = Runs["runsById"][string];
type State = { model: string };

// --8<-- [start:hooks]
// All hooks of a conversation are in one component: a suspended component would miss the frames of its socket.
export function useConversation(user: string, at: Step[], onCleared: () => void) {
  const [isConnected, setConnected] = useState(false);
  const connections = useRef(0);
  const agent = useAgent<State>({
    agent: "Assistant",
    name: user,
    ...(at.length > 0 && { sub: at }),
    onOpen: () => {
      connections.current += 1;
      setConnected(true);
    },
    onClose: () => setConnected(false),
    maxReconnectionDelay: 2000,
  });
  const runs = useAgentToolEvents<Part>({ agent });
  const chat = useAgentChat({ agent, getInitialMessages: messagesOf });
  const turn = useTurn(agent, chat);
  const forget = () => {
    runs.resetLocalState();
    onCleared();
  };
  useFrames(agent, ({ type, connect, messages }) => {
    const wasCleared = type === "cf_agent_chat_messages" && connect && messages?.length === 0 && connections.current > 1; // during a disconnect
    if (type === "cf_agent_chat_clear" || wasCleared) forget();
  });
  const clear = () => {
    chat.clearHistory();
    forget();
  };
  return { agent, runs, chat, turn, clear, isConnected };
}

/** The runs that a helper has started. */
export function useRunsOf(user: string, at: Step[]): Runs {
  return useAgentToolEvents<Part>({ agent: useAgent({ agent: "Assistant", name: user, sub: at, maxReconnectionDelay: 2000 }) });
}
// --8<-- [end:hooks]

type Socket = Pick<ReturnType<typeof useAgent>, "addEventListener" | "removeEventListener">;

/** Call a function with each frame from an agent. */
function useFrames(agent: Socket, onFrame: (frame: { type?: string; connect?: boolean; messages?: UIMessage[] }) => void): void {
  const latest = useRef(onFrame);
  latest.current = onFrame;
  useEffect(() => {
    const onMessage = ({ data }: MessageEvent) => typeof data === "string" && data.startsWith("{") && latest.current(JSON.parse(data));
    agent.addEventListener("message", onMessage);
    return () => agent.removeEventListener("message", onMessage);
  }, [agent]);
}
