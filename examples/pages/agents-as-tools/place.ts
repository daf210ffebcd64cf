// The URL names the user and the open helper. So users can share it, and the browser's back button works.
import { useCallback, useSyncExternalStore } from "react";

/** One step of a path: from an agent to one of its helpers. */
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
    // If the target is in the history, go back to it, so that the back button does not reopen closed helpers.
    const trail: string[] = history.state?.trail ?? [];
    const from = trail.lastIndexOf(to);
    if (from >= 0) return history.go(from - trail.length);
    history.pushState({ trail: [...trail, here()] }, "", to);
    dispatchEvent(new PopStateEvent("popstate"));
  }, []);
  const query = new URLSearchParams(search);
  return { user: query.get("user") || "main", at: read(query.get("at") ?? ""), go };
}

/** `?user=ann&at=Planner:ID/Researcher:ID`, outermost first. */
export function searchOf(at: Step[]): string {
  const user = new URLSearchParams(location.search).get("user");
  const path = at.map(({ agent, name }) => `${agent}:${encodeURIComponent(name).replaceAll("%3A", ":")}`).join("/");
  const query = [user && `user=${encodeURIComponent(user)}`, path && `at=${path.replaceAll("%", "%25")}`].filter(Boolean);
  return query.length ? `?${query.join("&")}` : "";
}

export const hrefOf = (at: Step[]) => location.pathname + searchOf(at);

const read = (path: string): Step[] =>
  path.split("/").filter(Boolean).map((step) => {
    const [agent, ...name] = step.split(":");
    return { agent, name: decode(name.join(":")) };
  });

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
