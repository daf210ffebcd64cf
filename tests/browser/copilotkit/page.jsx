// A page of CopilotKit: its chat, a tool that the page runs, and a button for an interrupt. `#writer/ann` is the agent.
import { createRoot } from "react-dom/client";
import { CopilotChat, CopilotKitProvider, HttpAgent, useFrontendTool, useInterrupt } from "@copilotkit/react-core/v2";
import { z } from "zod";

const [kind, thread] = location.hash.slice(1).split("/");

class Page extends HttpAgent {
  connect(input) {
    return new HttpAgent({ url: `${this.url}/connect`, threadId: this.threadId }).run(input);
  }
}

const agent = new Page({ url: `/agents/${kind}/${thread}/ag-ui`, threadId: thread, agentId: "default" });
window.ran = JSON.parse(localStorage.ran ?? "[]");

function Tools() {
  useFrontendTool({
    name: "get_time",
    description: "The time",
    parameters: z.object({ zone: z.string() }),
    handler: async ({ zone }) => {
      window.ran.push(zone);
      localStorage.ran = JSON.stringify(window.ran);
      await window.held; // a test may have the tool wait
      return "12:00";
    },
  });
  useInterrupt({
    agentId: "default",
    render: ({ interrupt, resolve }) => (
      <button id="allow" onClick={() => resolve({ approved: true })}>
        {interrupt?.message}
      </button>
    ),
  });
  return null;
}

createRoot(document.getElementById("root")).render(
  <CopilotKitProvider agents__unsafe_dev_only={{ default: agent }}>
    <Tools />
    <div style={{ height: "90vh" }}>
      <CopilotChat agentId="default" threadId={thread} />
    </div>
  </CopilotKitProvider>,
);
