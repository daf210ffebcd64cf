import { StrictMode, Suspense } from "react";
import { createRoot } from "react-dom/client";
import { Thinking } from "../design";
import { Chat } from "./Chat";

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <Suspense fallback={<main className="opening"><Thinking>Opening the conversation</Thinking></main>}>
      <Chat name={new URLSearchParams(location.search).get("chat") ?? "main"} />
    </Suspense>
  </StrictMode>,
);
