// What is shown without a token, or when the server refuses the token.

import { type FormEvent, useState } from "react";
import { Mark } from "../design/icons";
import { setToken } from "./token";

export function SignIn({ why }: { why: string | null }) {
  const [text, setText] = useState("");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    // The whole link will do: nobody should have to cut a token out of it.
    const token = /#t=([^&\s]+)/.exec(text)?.[1] ?? text.trim();
    if (token) setToken(token);
  };
  return (
    <main className="sign-in">
      <form onSubmit={submit}>
        <Mark />
        <h1>Sign in to the studio</h1>
        {why ? (
          <p role="alert" className="note is-bad">The server does not accept the token: {why}</p>
        ) : (
          <p>Open the link that <code>sapwood dev</code> prints, or paste a token.</p>
        )}
        <label htmlFor="token">Link or token</label>
        <input id="token" type="password" autoComplete="off" spellCheck={false} autoFocus value={text} onChange={(event) => setText(event.target.value)} />
        <button type="submit" className="button is-main" disabled={!text.trim()}>Sign in</button>
        <p className="hint">
          The server writes a token into <code>operator.json</code> in its data folder at each start. A token of an earlier start is not valid any more. This tab keeps it until you close the tab.
        </p>
      </form>
    </main>
  );
}
