// A page with a chat, which shows all it has: the messages as JSON, and whether it is busy.
import { createElement, Suspense } from "react";
import { createRoot } from "react-dom/client";
import { useAgent } from "agents/react";
import { useAgentChat } from "@cloudflare/ai-chat/react";

const TIMES = { UTC: "12:00", CET: "13:00" };
const execute = async ({ zone }) => TIMES[zone];
const TOOLS = { getTime: { description: "What time it is", parameters: { type: "object", properties: { zone: { type: "string" } } }, execute } };

const asked = new URLSearchParams(location.search);
const ends = [];

function Chat() {
  const agent = useAgent({ agent: asked.get("agent"), name: asked.get("name"), host: location.host, maxReconnectionDelay: 500 });
  const chat = useAgentChat({
    agent,
    tools: TOOLS,
    onTurnEnd: ({ outcome }) => ends.push(outcome),
    onToolCall: async ({ toolCall, addToolOutput }) => addToolOutput({ toolCallId: toolCall.toolCallId, output: await execute(toolCall.input) }),
  });
  const isBusy = ["streaming", "submitted"].includes(chat.status) || chat.isStreaming || chat.isToolContinuation;
  window.chat = { agent, chat, isBusy, ends, error: chat.error?.message ?? null };
  const files = chat.messages.flatMap(({ parts }) => parts.filter(({ type }) => type === "file"));
  const pictures = files.map(({ url }, at) => createElement("img", { key: at, src: url, width: 50 }));
  return createElement("div", {}, ...pictures, createElement("pre", { id: "messages" }, JSON.stringify(chat.messages, null, 1)));
}

createRoot(document.getElementById("root")).render(createElement(Suspense, { fallback: null }, createElement(Chat)));
