// What the token may do, for all parts of the page.

import { createContext, useContext } from "react";
import type { Session } from "./types";

export const SessionContext = createContext<Session | null>(null);

export function useSession(): Session & { can: (scope: string) => boolean } {
  const session = useContext(SessionContext)!;
  return { ...session, can: (scope) => session.scopes.includes(scope) };
}
