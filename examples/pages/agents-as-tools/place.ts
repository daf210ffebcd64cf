// Where one is on this page: whose assistant it is, and which helper is open, said by the address. So it can be shared, and the browser's buttons work.
import { useCallback, useSyncExternalStore } from "react";

/** One step down, from an agent to one that it gave a run to. */
export type Step = { agent: string; name: string };

const here = () => location.pathname + location.search;
const subscribe = (changed: () => void) => {
  addEventListener("popstate", changed);
  return () => removeEventListener("popstate", changed);
};

export function usePlace() {
  const search = useSyncExternalStore(subscribe, () => location.search);
  const go = useCallback((at: Step[]) => {
    const to = location.pathname + searchOf(at);
    if (to === here()) return;
    // Who came from there goes back there, so that the way back does not lead through all that was closed again.
    const trail: string[] = history.state?.trail ?? [];
    const from = trail.lastIndexOf(to);
    if (from >= 0) return history.go(from - trail.length);
    history.pushState({ trail: [...trail, here()] }, "", to);
    dispatchEvent(new PopStateEvent("popstate"));
  }, []);
  const asked = new URLSearchParams(search);
  return { user: asked.get("user") || "main", at: read(asked.get("at") ?? ""), go };
}

/** `?user=ann&at=Planner:ID/Researcher:ID`, outermost first. */
export function searchOf(at: Step[]): string {
  const user = new URLSearchParams(location.search).get("user");
  const path = at.map(({ agent, name }) => `${agent}:${encodeURIComponent(name).replaceAll("%3A", ":")}`).join("/");
  const asked = [user && `user=${encodeURIComponent(user)}`, path && `at=${path.replaceAll("%", "%25")}`].filter(Boolean);
  return asked.length ? `?${asked.join("&")}` : "";
}

export const hrefOf = (at: Step[]) => location.pathname + searchOf(at);

const read = (path: string): Step[] =>
  path.split("/").filter(Boolean).map((step) => {
    const [agent, ...name] = step.split(":");
    return { agent, name: decoded(name.join(":")) };
  });

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
