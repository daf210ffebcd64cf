import { type FormEvent, useState } from "react";
import { Mark } from "../design";

const GUESTS = ["ann", "bob"];

export function SignIn({ note, onSignedIn }: { note?: string; onSignedIn: () => void }) {
  const [name, setName] = useState("");
  const [error, setError] = useState<string>();

  const signIn = async (name: string) => {
    setError(undefined);
    try {
      const headers = { "content-type": "application/json" };
      const response = await fetch("/session", { method: "POST", headers, body: JSON.stringify({ name }) });
      const body = await response.json();
      if (response.ok) onSignedIn();
      else setError(body.error);
    } catch {
      setError("The server is unreachable. Try again.");
    }
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    void signIn(name);
  };

  return (
    <main className="porch">
      <div className="porch-card">
        <Mark />
        <h1>Rooms</h1>
        {note && <p className="porch-note" role="status">{note}</p>}
        <p>Your rooms are private: other users cannot open them. Who are you?</p>
        <div className="porch-guests" role="group" aria-label="Sign in as">
          {GUESTS.map((guest) => (
            <button key={guest} type="button" className="button is-guest" onClick={() => void signIn(guest)}>
              <Face name={guest} /><span className="unseen">Sign in as </span>{guest}
            </button>
          ))}
        </div>
        <form className="porch-form" onSubmit={submit}>
          <label htmlFor="name">Or another name</label>
          <div className="porch-row">
            <input id="name" className="field" value={name} placeholder="your-name" autoComplete="username" autoCapitalize="none" spellCheck={false} maxLength={32} aria-invalid={!!error} aria-describedby={error ? "name-error" : undefined} onChange={(event) => setName(event.target.value)} />
            <button type="submit" className="button is-main" disabled={!name.trim()}>Sign in</button>
          </div>
          {error && <p id="name-error" className="porch-error" role="alert">{error}</p>}
        </form>
        <p className="porch-small">This is a demo without passwords.</p>
      </div>
    </main>
  );
}

export const Face = ({ name }: { name: string }) => <span className="face" aria-hidden="true">{name[0].toUpperCase()}</span>;
