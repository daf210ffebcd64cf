import { useCallback, useEffect, useRef, useState } from "react";
import { Thinking } from "../design";
import { Rooms } from "./Rooms";
import { SignIn } from "./SignIn";

type Session = { name: string | null; note?: string; visit: number };

/** The house: shows the rooms of a user who is signed in, and the sign-in form to all others. */
export function House() {
  const [session, setSession] = useState<Session>();
  const [isAway, setAway] = useState(false);
  const isLeaving = useRef(false);

  const refresh = useCallback(async (note?: string) => {
    for (;;) {
      const name = await fetchUser().catch(() => undefined);
      setAway(name === undefined);
      if (name !== undefined) {
        // Each sign-in is a new visit, also of the same user: React mounts the rooms again.
        setSession((last) => ({ name, note: name ? undefined : note, visit: (last?.visit ?? 0) + 1 }));
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }, []);
  useEffect(() => void refresh(), [refresh]);

  const onSignOut = async () => {
    isLeaving.current = true;
    await fetch("/session", { method: "DELETE" }).catch(() => undefined);
    history.replaceState(null, "", location.pathname); // the next user has other rooms
    await refresh("You are signed out.");
    isLeaving.current = false;
  };

  if (!session) return <main className="opening"><Thinking>{isAway ? "The server is unreachable. Retrying" : "Checking who you are"}</Thinking></main>;
  if (!session.name) return <SignIn note={session.note} onSignedIn={() => void refresh()} />;
  return <Rooms key={session.visit} user={session.name} onSignOut={() => void onSignOut()} onLost={() => void (isLeaving.current || refresh("You have been signed out."))} />;
}

/** Return the user of the session cookie. Scripts cannot read the cookie, so this asks the porter. */
async function fetchUser(): Promise<string | null> {
  const response = await fetch("/session");
  if (!response.ok) throw new Error(response.statusText);
  return (await response.json()).user;
}
