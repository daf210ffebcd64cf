import { StrictMode, Suspense } from "react";
import { createRoot } from "react-dom/client";
import { Boundary, Thinking } from "../design";
import { Escapes } from "./Escapes";
import { Sandbox } from "./Sandbox";
import "./sandbox.css";

// `?escapes` is the page with the ten ways out; `?user=ann` another lab with other customers.
const asked = new URLSearchParams(location.search);
const name = asked.get("user") || "main";

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <Boundary>
      <Suspense fallback={<main className="opening"><Thinking>Opening the lab</Thinking></main>}>{asked.has("escapes") ? <Escapes name={name} /> : <Sandbox name={name} />}</Suspense>
    </Boundary>
  </StrictMode>,
);
