import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { Boundary } from "../design";
import { House } from "./House";
import "./rooms.css";

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <Boundary><House /></Boundary>
  </StrictMode>,
);
