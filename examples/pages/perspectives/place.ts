// The URL names the user and the open run: `?user=ann&open=RUN`.
import { useCallback, useSyncExternalStore } from "react";

const subscribe = (changed: () => void) => {
  addEventListener("popstate", changed);
  return () => removeEventListener("popstate", changed);
};

export function usePlace() {
  const query = new URLSearchParams(useSyncExternalStore(subscribe, () => location.search));
  const go = useCallback((run: string | null) => {
    // Closing a run that was opened here goes back, so that the back button does not open it again.
    if (!run && history.state?.isInside) return history.back();
    history.pushState({ isInside: run !== null }, "", hrefOf(run));
    dispatchEvent(new PopStateEvent("popstate"));
  }, []);
  return { user: query.get("user") || "main", open: query.get("open"), go };
}

export function hrefOf(run: string | null): string {
  const query = new URLSearchParams(location.search);
  query.delete("open");
  if (run) query.set("open", run);
  return location.pathname + (query.size ? `?${query}` : "");
}
