import { useState } from "preact/hooks";
import { begin, signIn, standing } from "../session";
import { Button, PageHead, TextField } from "../ui";

/** Asks for the fleet's token, and says so where nothing answers. */
export function LoginView() {
  const [token, setToken] = useState("");
  const [wrong, setWrong] = useState<string>();
  const [busy, setBusy] = useState(false);

  async function go(event: Event): Promise<void> {
    event.preventDefault();
    if (!token.trim()) {
      setWrong("Enter the token.");
      return;
    }
    setBusy(true);
    setWrong(await signIn(token.trim()));
    setBusy(false);
  }

  if (standing.value === "unreachable") {
    return (
      <main class="alone" id="view" tabIndex={-1}>
        <PageHead title="The fleet does not answer" lead="See whether `fleet up` runs on this address." />
        <Button kind="primary" onClick={() => void begin()}>
          Try again
        </Button>
      </main>
    );
  }
  return (
    <main class="alone" id="view" tabIndex={-1}>
      <PageHead title="Sign in" lead="To the fleet at this address." />
      <form class="card stack" onSubmit={(event) => void go(event)} noValidate>
        <TextField
          label="Token"
          name="token"
          type="password"
          value={token}
          onInput={setToken}
          error={wrong}
          required
          autoFocus
          autocomplete="current-password"
          hint="`fleet up` prints an address that has it; open that one, and you are signed in."
        />
        <Button kind="primary" type="submit" busy={busy}>
          Sign in
        </Button>
      </form>
    </main>
  );
}
