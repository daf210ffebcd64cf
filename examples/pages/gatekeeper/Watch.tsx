import { useAgent } from "agents/react";
import { useState } from "react";
import { Badge, Page } from "../design";
import { Books, Queue } from "./Gate";
import { type State, useGate } from "./gate";

/** The gate without the conversation, for a reviewer. */
export function Watch({ name }: { name: string }) {
  const [state, setState] = useState<State>();
  const [isConnected, setConnected] = useState(false);
  const agent = useAgent<State>({ agent: "Gatekeeper", name, onStateUpdate: setState, onOpen: () => setConnected(true), onClose: () => setConnected(false), maxReconnectionDelay: 2000 });
  const gate = useGate(agent);
  const back = new URLSearchParams(location.search);
  back.delete("gate");
  return (
    <Page
      title="The gate"
      head={
        <>
          <Badge tone={isConnected ? "good" : "warn"} dot busy={!isConnected}><span className="unseen-narrow">{isConnected ? "connected" : "connecting"}</span></Badge>
          <span className="spacer" />
          <a className="button is-quiet" href={`?${back}`}>Conversation</a>
        </>
      }
    >
      <div className="watch">
        <section aria-labelledby="waiting-title">
          <h2 id="waiting-title">Waiting for you</h2>
          <Queue name={name} gate={gate} />
        </section>
        <div className="books"><Books state={state} /></div>
      </div>
    </Page>
  );
}
