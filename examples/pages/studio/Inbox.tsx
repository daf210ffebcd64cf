// What waits for a person, in all trees or below one agent.

import { count } from "./format";
import { usePages, useRefresh } from "./hooks";
import { ErrorNote, Gaps, Loading, MoreButton, Nothing, Title } from "./parts";
import { Question } from "./Question";
import { link, useRoute } from "./route";
import type { QuestionRow } from "./types";

const EVERY = 3000;
const LIMIT = 50;

export default function Inbox() {
  const { query } = useRoute();
  const at = query.get("at");
  const pages = usePages<QuestionRow>("questions", { address: at }, LIMIT);
  useRefresh(pages, LIMIT, EVERY);
  const number = pages.rows.length;
  return (
    <>
      <Title title="Inbox">
        {pages.first && <p className="muted" role="status">{number ? `${count(number)}${pages.hasMore ? "+" : ""} ${number === 1 ? "question waits" : "questions wait"} for a person` : ""}</p>}
        {at && <p className="muted">Only of {at} and agents below it. <a href={link(["inbox"])}>Show all</a></p>}
      </Title>
      {pages.error && <ErrorNote error={pages.error} onRetry={pages.reload} />}
      {!pages.first && !pages.error && <Loading what="Loading the questions" />}
      {pages.first && !number && <Nothing title="Nothing waits for a person">Approvals and questions of all agents appear here as they are asked.</Nothing>}
      <ul className="cards" aria-label="Questions">{pages.rows.map((one) => <Question key={`${one.address} ${one.id}`} row={one} onDone={pages.reload} />)}</ul>
      <MoreButton {...pages} />
      <Gaps unanswered={pages.first?.unanswered} unread={pages.first?.unread} />
    </>
  );
}
