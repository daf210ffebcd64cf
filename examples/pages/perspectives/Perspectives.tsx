import { type ReactNode, useState } from "react";
import { Alert, Badge, Bin, Cart, Coins, Composer, Empty, Gear, Log, Message, Page, Plan, RunPanel, SureButton, Text, Thinking, Who } from "../design";
import { type Discussion, type Lane, type Rule, type Run, usePanel } from "./panel";
import { hrefOf, usePlace } from "./place";
import { Parts, withoutAborted } from "./Parts";
import { Talk } from "./Talk";
import { Timeline, isOpen } from "./Timeline";

export const FACES: Record<string, { icon: ReactNode; asks: string }> = {
  Engineer: { icon: <Gear />, asks: "Is it doable?" },
  Customer: { icon: <Cart />, asks: "Is it useful?" },
  Accountant: { icon: <Coins />, asks: "Is it worth it?" },
  Chair: { icon: <Plan />, asks: "What is the conclusion?" },
};
const SPECIALISTS = ["Engineer", "Customer", "Accountant"];
const RULES: Record<Rule, { name: string; waits: string }> = {
  settle: { name: "Settle", waits: "all three" },
  quorum: { name: "Quorum", waits: "two of three" },
  race: { name: "Race", waits: "the first" },
};
const SUGGESTIONS = ["Shall we open a second bakery?", "Should we rewrite the app in Rust?", "Shall we try a four-day week?"];

type Ask = (question: string, rule: Rule, failing: string[]) => void;

export function Perspectives() {
  const { user, open, go } = usePlace();
  const { state, runs, call, ahead, isConnected } = usePanel(user);
  const [rule, choose] = useState<Rule>("settle");
  const [failing, fail] = useState<string[]>([]);
  const [pending, setPending] = useState<{ id: string; question: string }>();
  const [error, setError] = useState<string>();
  const discussions = state?.discussions ?? [];
  const latest = discussions.at(-1);
  const isAsking = pending !== undefined && !discussions.some(({ id }) => id === pending.id);
  const isBusy = isAsking || latest?.outcome === null;
  const report = (promise: Promise<unknown>) => promise.then(() => setError(undefined), (reason: Error) => setError(reason.message));
  const ask: Ask = (question, rule, failing) => {
    const id = Date.now().toString(36) + Math.random().toString(36).slice(2, 10);
    setPending({ id, question });
    void report(call("ask", id, question, rule, failing)).finally(() => setPending((latest) => (latest?.id === id ? undefined : latest)));
  };
  const stop = () => latest && void report(call("stop", latest.id));
  const lanes = discussions.flatMap((one) => one.lanes);

  return (
    <>
      <Page
        title="Perspectives"
        head={
          <>
            <Badge tone={isConnected ? "good" : "warn"} dot busy={!isConnected}><span className="unseen-narrow">{isConnected ? "connected" : "connecting"}</span></Badge>
            {state?.model && <span className="only-wide"><Badge>{state.model}</Badge></span>}
            <span className="spacer" />
            <SureButton label="Clear" sure="Clear all?" icon={<Bin />} disabled={discussions.length === 0} onSure={() => void report(call("clear"))} />
          </>
        }
      >
        <Log
          label="Discussions"
          isBusy={isBusy}
          foot={
            <>
              <Choices rule={rule} onRule={choose} failing={failing} onFailing={fail} />
              <Composer label="Ask the panel" isBusy={isBusy} onSend={(text) => ask(text, rule, failing)} onStop={stop} />
            </>
          }
        >
          {!state && <div className="opening"><Thinking>Opening the panel</Thinking></div>}
          {state && discussions.length === 0 && !isAsking && (
            <Empty title="One question, three perspectives" suggestions={SUGGESTIONS} onSuggestion={(text) => ask(text, rule, failing)}>
              An engineer, a customer and an accountant answer in parallel. Choose below whether to wait for all of them, for two, or for the first, and which of them fails.
            </Empty>
          )}
          {discussions.map((discussion) => (
            <DiscussionView key={discussion.id} discussion={discussion} runs={runs} ahead={ahead} onOpen={go} onAsk={ask} onDismiss={({ run }) => void report(call("dismiss", run))} />
          ))}
          {isAsking && <><Message from="You" kind="user">{pending.question}</Message><Thinking>{isConnected ? "Asking" : "Reconnecting"}</Thinking></>}
          {error && <Alert text={error} action="Dismiss" onAction={() => setError(undefined)} />}
        </Log>
      </Page>
      {open && state && <Talk key={open} user={user} run={open} lane={lanes.find(({ run }) => run === open)} onClose={() => go(null)} />}
    </>
  );
}

type ChoicesProps = { rule: Rule; onRule: (rule: Rule) => void; failing: string[]; onFailing: (failing: string[]) => void };

/** The options of the next question. */
function Choices({ rule, onRule, failing, onFailing }: ChoicesProps) {
  const toggle = (who: string) => onFailing(failing.includes(who) ? failing.filter((one) => one !== who) : [...failing, who]);
  return (
    <div className="choices">
      <fieldset>
        <legend>Wait for</legend>
        {(Object.keys(RULES) as Rule[]).map((one) => (
          <label key={one} className="choice"><input type="radio" name="rule" checked={rule === one} onChange={() => onRule(one)} /><span>{RULES[one].waits}<small>{one}</small></span></label>
        ))}
      </fieldset>
      <fieldset>
        <legend>Fails on purpose</legend>
        {SPECIALISTS.map((who) => (
          <label key={who} className="choice is-fail"><input type="checkbox" checked={failing.includes(who)} onChange={() => toggle(who)} /><span>{who}</span></label>
        ))}
      </fieldset>
    </div>
  );
}

type DiscussionProps = { discussion: Discussion; runs: Record<string, Run>; ahead: number; onOpen: (run: string) => void; onAsk: Ask; onDismiss: (lane: Lane) => void };

/** A question with its timeline, the answers and the summary. */
function DiscussionView({ discussion, runs, ahead, onOpen, onAsk, onDismiss }: DiscussionProps) {
  const { id, question, rule, outcome, lanes } = discussion;
  const specialists = lanes.filter(({ who }) => who !== "Chair");
  const chair = lanes.find(({ who }) => who === "Chair");
  const answered = specialists.filter(({ status }) => status === "completed").length;
  return (
    <>
      <Message from="You" kind="user">{question}</Message>
      <section className="discussion" aria-label={`Discussion of “${question}”`} data-testid="discussion" data-outcome={outcome ?? "open"}>
        <p className="discussion-head">
          <span><strong>{RULES[rule].name}</strong>: waits for {RULES[rule].waits}</span>
          <Outcome outcome={outcome} answered={answered} hasChair={chair !== undefined} />
        </p>
        {lanes.length > 0 && <Timeline discussion={discussion} ahead={ahead} onDismiss={onDismiss} />}
        <div className="runs">
          {specialists.map((lane) => <Specialist key={lane.run} lane={lane} run={runs[lane.run]} onOpen={() => onOpen(lane.run)} />)}
        </div>
      </section>
      {chair && <Synthesis lane={chair} run={runs[chair.run]} />}
      {outcome === "too few" && <Alert text={`${rule === "quorum" ? "Two answers are needed, and too few arrived" : "No specialist answered"}. There is nothing to sum up.`} action="Ask again, without failures" onAction={() => onAsk(question, rule, [])} />}
      {outcome === "not summed up" && <Alert text={chair?.error ?? "The chair did not sum up."} action="Ask again" onAction={() => onAsk(question, rule, [])} />}
    </>
  );
}

function Outcome({ outcome, answered, hasChair }: { outcome: Discussion["outcome"]; answered: number; hasChair: boolean }) {
  if (outcome === "summed up") return <Badge tone="good" dot>{answered} of 3 answered, summed up</Badge>;
  if (outcome === "stopped") return <Badge tone="warn" dot>stopped by you</Badge>;
  if (outcome) return <Badge tone="bad" dot>{outcome === "too few" ? "too few answered" : "not summed up"}</Badge>;
  return <Badge dot busy>{hasChair ? "summing up" : `${answered} of 3 answered`}</Badge>;
}

function Specialist({ lane, run, onOpen }: { lane: Lane; run?: Run; onOpen: () => void }) {
  const { who, status } = lane;
  return (
    <RunPanel
      id={lane.run}
      kind={who}
      name={who}
      icon={FACES[who]?.icon ?? <Who />}
      task={FACES[who]?.asks ?? ""}
      status={status}
      result={run?.summary}
      error={status === "error" || status === "interrupted" ? (lane.error ?? "It failed.") : undefined}
      href={hrefOf(lane.run)}
      onOpen={onOpen}
    >
      {run ? <Parts parts={withoutAborted(run.parts)} isGrowing={isOpen(lane)} /> : null}
    </RunPanel>
  );
}

function Synthesis({ lane, run }: { lane: Lane; run?: Run }) {
  const parts = withoutAborted(run?.parts ?? []).filter(({ type }) => type === "text");
  const text = parts.map((part) => (part.type === "text" ? part.text : "")).join("");
  const isGrowing = isOpen(lane);
  return (
    <Message from="Chair" kind="assistant" isBusy={isGrowing}>
      <div className="synthesis">
        <h3>Conclusion</h3>
        {text ? <Text text={text} growing={isGrowing} /> : isGrowing && <Thinking>The chair is summing up</Thinking>}
      </div>
    </Message>
  );
}
