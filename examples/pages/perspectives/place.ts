// Whose panel it is, and which of its runs is open, said by the address: `?user=ann&open=RUN`.
import { useCallback, useSyncExternalStore } from "react";

const subscribe = (changed: () => void) => {
  addEventListener("popstate", changed);
  return () => removeEventListener("popstate", changed);
};

export function usePlace() {
  const asked = new URLSearchParams(useSyncExternalStore(subscribe, () => location.search));
  const go = useCallback((run: string | null) => {
    // Who closes what they have opened goes back, so that the way back does not lead through it again.
    if (!run && history.state?.isInside) return history.back();
    history.pushState({ isInside: run !== null }, "", hrefOf(run));
    dispatchEvent(new PopStateEvent("popstate"));
  }, []);
  return { user: asked.get("user") || "main", open: asked.get("open"), go };
}

export function hrefOf(run: string | null): string {
  const asked = new URLSearchParams(location.search);
  asked.delete("open");
  if (run) asked.set("open", run);
  return location.pathname + (asked.size ? `?${asked}` : "");
}
