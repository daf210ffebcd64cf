import { StrictMode, Suspense } from "react";
import { createRoot } from "react-dom/client";
import { Boundary, Thinking } from "../design";
import { Escapes } from "./Escapes";
import { Sandbox } from "./Sandbox";
import "./sandbox.css";

// `?escapes` shows the ten escape attempts. `?user=ann` opens another lab with its own customers.
const query = new URLSearchParams(location.search);
const name = query.get("user") || "main";

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <Boundary>
      <Suspense fallback={<main className="opening"><Thinking>Opening the lab</Thinking></main>}>{query.has("escapes") ? <Escapes name={name} /> : <Sandbox name={name} />}</Suspense>
    </Boundary>
  </StrictMode>,
);
