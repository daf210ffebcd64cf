// The frame of the studio: who is signed in, the screens, and the one that is shown.

import { type ReactNode, lazy, Suspense, useEffect, useRef, useSyncExternalStore } from "react";
import { Boundary } from "../design/Boundary";
import { Mark } from "../design/icons";
import { ActHost } from "./Act";
import { useAnswer } from "./hooks";
import { Branches, Clock, Coin, Pulse, Rack, Tray } from "./icons";
import { Now } from "./Now";
import { ErrorNote, Loading, Missing } from "./parts";
import { link, useRoute } from "./route";
import { SessionContext, useSession } from "./session";
import { SignIn } from "./SignIn";
import { getRefusal, getToken, onToken } from "./token";
import type { Session } from "./types";

const Agents = lazy(() => import("./Agents"));
const Agent = lazy(() => import("./Agent"));
const Timeline = lazy(() => import("./Timeline"));
const Compare = lazy(() => import("./Compare"));
const Inbox = lazy(() => import("./Inbox"));
const Schedules = lazy(() => import("./Schedules"));
const Spending = lazy(() => import("./Spending"));
const Machines = lazy(() => import("./Machines"));

type Screen = { name: string; label: string; icon: ReactNode; show: () => ReactNode };

const SCREENS: Screen[] = [
  { name: "", label: "Now", icon: <Pulse />, show: () => <Now /> },
  { name: "agents", label: "Agents", icon: <Branches />, show: () => <Agents /> },
  { name: "inbox", label: "Inbox", icon: <Tray />, show: () => <Inbox /> },
  { name: "schedules", label: "Schedules", icon: <Clock />, show: () => <Schedules /> },
  { name: "spending", label: "Spending", icon: <Coin />, show: () => <Spending /> },
  { name: "machines", label: "Machines", icon: <Rack />, show: () => <Machines /> },
];
/** Screens about something: links lead there, and they belong to one of the navigation. */
const DETAILS: (Screen & { of: string })[] = [
  { name: "a", of: "agents", label: "Agent", icon: null, show: () => <Agent /> },
  { name: "t", of: "agents", label: "Timeline", icon: null, show: () => <Timeline /> },
  { name: "compare", of: "agents", label: "Compare", icon: null, show: () => <Compare /> },
];

export function Studio() {
  const token = useSyncExternalStore(onToken, getToken);
  if (!token) return <SignIn why={getRefusal()} />;
  return <SignedIn key={token} />;
}

function SignedIn() {
  const { data, error, reload } = useAnswer<Session>("session", {});
  if (error && error.code !== "unauthenticated") return <div className="opening"><ErrorNote error={error} onRetry={reload} /></div>;
  if (!data) return <div className="opening"><Loading what="Connecting" /></div>;
  return <SessionContext value={data}><Frame /></SessionContext>;
}

/** Screens about the whole server. The server refuses what they ask with a token that is limited to an agent. */
const WHOLE = ["", "machines"];

function Frame() {
  const { path } = useRoute();
  const { below } = useSession();
  const screens = below === null ? SCREENS : SCREENS.filter(({ name }) => !WHOLE.includes(name));
  const detail = DETAILS.find(({ name }) => name === path[0]);
  const screen = detail ?? (path.length ? screens.find(({ name }) => name === path[0]) : screens[0]);
  const current = detail?.of ?? screen?.name;
  const place = path.slice(0, 2).join("/");
  const main = useRef<HTMLElement>(null);
  const isFirst = useRef(true);
  useEffect(() => {
    document.title = `${detail && path[1] ? path[1] : screen?.label ?? "Not found"} · sapwood studio`;
    if (!isFirst.current) main.current?.focus({ preventScroll: true });
    isFirst.current = false;
  }, [place]);
  return (
    <div className="studio">
      <header className="brand">
        <a className="skip" href={link(path)} onClick={(event) => (event.preventDefault(), main.current?.focus())}>Skip to content</a>
        <a href="#/" aria-label="sapwood studio, start"><Mark /><span>studio</span></a>
      </header>
      <nav className="nav" aria-label="Screens">
        {screens.map(({ name, label, icon }) => (
          <a key={name} href={link(name ? [name] : [])} aria-current={current === name ? "page" : undefined}>{icon}<span>{label}</span></a>
        ))}
      </nav>
      <main className="stage" ref={main} tabIndex={-1}>
        <Boundary key={place}>
          <Suspense fallback={<Loading what="Loading" />}>{screen ? screen.show() : <Missing what="This page does not exist." />}</Suspense>
        </Boundary>
      </main>
      <ActHost />
    </div>
  );
}
