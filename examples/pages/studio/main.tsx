import { createRoot } from "react-dom/client";
import { Boundary } from "../design/Boundary";
import { Studio } from "./Studio";
import { takeToken } from "./token";
import "../design/design.css";
import "./studio.css";
import "./parts.css";
import "./agents.css";
import "./agent.css";
import "./timeline.css";
import "./compare.css";

takeToken();
addEventListener("hashchange", takeToken); // a link that is pasted into a tab that is open
createRoot(document.getElementById("root")!).render(<Boundary><Studio /></Boundary>);
