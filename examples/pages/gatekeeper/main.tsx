import { StrictMode, Suspense } from "react";
import { createRoot } from "react-dom/client";
import { Boundary, Thinking } from "../design";
import { Gatekeeper } from "./Gatekeeper";
import { Watch } from "./Watch";
import "./gatekeeper.css";

// `?gate` shows only the gate, for a reviewer. `?user=ann` opens another assistant with its own customers.
const query = new URLSearchParams(location.search);
const name = query.get("user") || "main";

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <Boundary>
      <Suspense fallback={<main className="opening"><Thinking>Opening the conversation</Thinking></main>}>{query.has("gate") ? <Watch name={name} /> : <Gatekeeper name={name} />}</Suspense>
    </Boundary>
  </StrictMode>,
);
