import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { Boundary } from "../design";
import { Perspectives } from "./Perspectives";
import "./perspectives.css";

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <Boundary><Perspectives /></Boundary>
  </StrictMode>,
);
