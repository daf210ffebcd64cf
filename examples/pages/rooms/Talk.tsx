import { useAgentChat } from "@cloudflare/ai-chat/react";
import { useAgent } from "agents/react";
import type { UIMessage } from "ai";
import { type FormEvent, type KeyboardEvent, useEffect, useRef, useState } from "react";
import { Again, Alert, Back, Bin, Composer, Confirm, Empty, Log, Mark, Message, Pencil, Text, Thinking, textOf, useTurn } from "../design";
import { type Room, UNTITLED } from "./Rooms";

type TalkProps = {
  user: string;
  room: Room;
  /** The first message to send to a new room. */
  first?: string;
  onFirst: () => void;
  onRename: (title: string) => void;
  onDelete: () => void;
  onBack: () => void;
};

// --8<-- [start:talk]
export function Talk({ user, room, first, onFirst, onRename, onDelete, onBack }: TalkProps) {
  const agent = useAgent({ agent: "Inbox", name: user, sub: [{ agent: "Room", name: room.id }], maxReconnectionDelay: 2000 });
  const chat = useAgentChat({ agent, getInitialMessages: messagesOf });
  const { isBusy, isCutOff, error, messages } = useTurn(agent, chat);
  // --8<-- [end:talk]
  const [isSure, ask] = useState(false);
  const last = messages.at(-1);
  useEffect(() => {
    if (!first) return;
    onFirst();
    void chat.sendMessage({ text: first });
  }, [first]);
  if (agent.connectionError?.code === 4404) return <Gone onBack={onBack} />;
  return (
    <>
      <header className="talk-head">
        <button type="button" className="button is-quiet is-back" aria-label="Back to all rooms" onClick={onBack}><Back /></button>
        <Title title={room.title} onRename={onRename} />
        <button type="button" className="button is-quiet" aria-label="Delete this room" title="Delete this room" onClick={() => ask(true)}><Bin /></button>
      </header>
      <Log
        label="Conversation"
        isBusy={isBusy}
        foot={
          <>
            <Composer label="Say something" isBusy={isBusy} onSend={(text) => void chat.sendMessage({ text })} onStop={() => void chat.stop()} />
            <p className="hint">Enter sends, Shift+Enter adds a line, Esc stops.</p>
          </>
        }
      >
        {messages.length === 0 && !isBusy && !first && (
          <Empty title="A new room" suggestions={["Hello!", "What can you do?", "Tell me a story"]} onSuggestion={(text) => void chat.sendMessage({ text })}>
            Your first message becomes the title. You can leave the room at any time: the answer continues.
          </Empty>
        )}
        {messages.map((message) =>
          message.role === "user" ? (
            <Message key={message.id} from="You" kind="user">{textOf(message)}</Message>
          ) : (
            <Message key={message.id} from="Room" kind="assistant" isBusy={isBusy && message === last}><Text text={textOf(message)} growing={isBusy && message === last} /></Message>
          ),
        )}
        {isBusy && !(last?.role === "assistant" && textOf(last)) && <Thinking>{isCutOff ? "Reconnecting" : chat.isRecovering ? "Resuming after an interruption" : "Thinking"}</Thinking>}
        {error && <Alert text={error.message} action="Try again" onAction={() => void chat.regenerate()} />}
        {!isBusy && !error && last?.role === "assistant" && (
          <div className="message-foot">
            <button type="button" className="button is-quiet" onClick={() => void chat.regenerate()}><Again />Regenerate</button>
          </div>
        )}
      </Log>
      {isSure && (
        <Confirm title="Delete this room?" yes="Delete" onYes={onDelete} onNo={() => ask(false)}>
          “{room.title || UNTITLED}” and all its messages. This cannot be undone.
        </Confirm>
      )}
    </>
  );
}

/** The title of a room. Press it to edit: Enter saves, Escape cancels. */
function Title({ title, onRename }: { title: string; onRename: (title: string) => void }) {
  const [text, setText] = useState<string>();
  const input = useRef<HTMLInputElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const isEditing = text !== undefined;
  useEffect(() => void (isEditing && input.current?.select()), [isEditing]);
  const end = (isSaved: boolean) => {
    if (isSaved && text?.trim() && text.trim() !== title) onRename(text.trim());
    setText(undefined);
    requestAnimationFrame(() => button.current?.focus());
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    end(true);
  };
  const onKey = (event: KeyboardEvent) => event.key === "Escape" && end(false);
  if (!isEditing) {
    return (
      <h2 className="talk-title">
        <button ref={button} type="button" className="title" title="Rename" onClick={() => setText(title)}><span className="title-text">{title || UNTITLED}</span><Pencil /></button>
      </h2>
    );
  }
  return (
    <form className="talk-title" onSubmit={submit}>
      <label className="unseen" htmlFor="title">Title of the room</label>
      <input id="title" ref={input} className="field" value={text} maxLength={80} autoComplete="off" onChange={(event) => setText(event.target.value)} onKeyDown={onKey} onBlur={() => end(true)} />
    </form>
  );
}

export function Gone({ onBack }: { onBack: () => void }) {
  return (
    <div className="talk-empty">
      <div className="empty" role="alert">
        <Mark />
        <h2>This room does not exist</h2>
        <p>It was deleted, perhaps in another tab, or it never existed.</p>
        <button type="button" className="button is-main" onClick={onBack}>Show my rooms</button>
      </div>
    </div>
  );
}

/** Return the messages of a room. While the server is unreachable, retry. */
async function messagesOf({ url }: { url?: string }): Promise<UIMessage[]> {
  for (;;) {
    const response = await fetch(`${url}/get-messages`).catch(() => undefined);
    if (response?.ok) return response.json();
    if (response && response.status < 500) return [];
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

