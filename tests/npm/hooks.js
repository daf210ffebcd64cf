// What a page with a chat is made of, as one file: a tab that loads it again has nothing in common with the others.
export { createElement, Suspense } from "react";
export { createRoot } from "react-dom/client";
export { useAgent } from "agents/react";
export { useAgentChat } from "@cloudflare/ai-chat/react";
