import { useCallback, useEffect, useRef, useState } from "react";
import { Thinking } from "../design";
import { Rooms } from "./Rooms";
import { SignIn } from "./SignIn";

type Who = { name: string | null; note?: string; visit: number };

/** The house: whoever the porter knows is let into their rooms; everybody else is asked for a name. */
export function House() {
  const [who, setWho] = useState<Who>();
  const [isAway, setAway] = useState(false);
  const isLeaving = useRef(false);

  const ask = useCallback(async (note?: string) => {
    for (;;) {
      const name = await known().catch(() => undefined);
      setAway(name === undefined);
      if (name !== undefined) {
        // A new visit, also of the same person: what was open is opened anew.
        setWho((last) => ({ name, note: name ? undefined : note, visit: (last?.visit ?? 0) + 1 }));
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }, []);
  useEffect(() => void ask(), [ask]);

  const onSignOut = async () => {
    isLeaving.current = true;
    await fetch("/session", { method: "DELETE" }).catch(() => undefined);
    history.replaceState(null, "", location.pathname); // whoever comes next has other rooms
    await ask("You are signed out.");
    isLeaving.current = false;
  };

  if (!who) return <main className="opening"><Thinking>{isAway ? "The server cannot be reached. Trying again" : "Ringing the bell"}</Thinking></main>;
  if (!who.name) return <SignIn note={who.note} onSignedIn={() => void ask()} />;
  return <Rooms key={who.visit} user={who.name} onSignOut={() => void onSignOut()} onLost={() => void (isLeaving.current || ask("You have been signed out."))} />;
}

/** Return whose cookie this browser has. It cannot be read here, so the porter is asked. */
async function known(): Promise<string | null> {
  const answer = await fetch("/session");
  if (!answer.ok) throw new Error(answer.statusText);
  return (await answer.json()).user;
}
