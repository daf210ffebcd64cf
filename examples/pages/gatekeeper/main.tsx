import { StrictMode, Suspense } from "react";
import { createRoot } from "react-dom/client";
import { Boundary, Thinking } from "../design";
import { Gatekeeper } from "./Gatekeeper";
import { Watch } from "./Watch";
import "./gatekeeper.css";

// `?gate` is the gate by itself, for whoever decides and does not talk; `?user=ann` another assistant with other customers.
const asked = new URLSearchParams(location.search);
const name = asked.get("user") || "main";

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <Boundary>
      <Suspense fallback={<main className="opening"><Thinking>Opening the conversation</Thinking></main>}>{asked.has("gate") ? <Watch name={name} /> : <Gatekeeper name={name} />}</Suspense>
    </Boundary>
  </StrictMode>,
);
