import { StrictMode, Suspense } from "react";
import { createRoot } from "react-dom/client";
import { Boundary, Thinking } from "../design";
import { Assistant } from "./Assistant";

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <Boundary>
      <Suspense fallback={<main className="opening"><Thinking>Opening the conversation</Thinking></main>}>
        <Assistant />
      </Suspense>
    </Boundary>
  </StrictMode>,
);
