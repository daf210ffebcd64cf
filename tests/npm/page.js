// A page with one counter, whose number is the state of an agent three levels down.
import { createElement } from "react";
import { createRoot } from "react-dom/client";
import { useAgent } from "agents/react";

const asked = new URLSearchParams(location.search);

function Counter() {
  const agent = useAgent({
    agent: "Room",
    name: "browser",
    host: asked.get("host") ?? location.host,
    sub: [
      { agent: "Desk", name: "a/b" },
      { agent: "Reporter", name: asked.get("reporter") },
    ],
  });
  const more = () => agent.setState({ count: agent.state.count + 1 });
  return createElement(
    "main",
    null,
    createElement("p", { id: "who" }, agent.identified ? agent.name : ""),
    createElement("p", { id: "count" }, agent.state?.count),
    createElement("p", { id: "error" }, agent.connectionError?.code),
    createElement("button", { id: "more", onClick: more }),
    createElement("button", { id: "bump", onClick: () => agent.call("bump") }),
  );
}

createRoot(document.getElementById("root")).render(createElement(Counter));
