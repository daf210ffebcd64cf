// The log lines of one agent.

import type { TabProps } from "./Agent";
import { LogLines } from "./LogLines";

export default function AgentLog({ address }: TabProps) {
  return <LogLines address={address} />;
}
