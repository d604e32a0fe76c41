import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { get, remove } from "../api";
import { ConversationView } from "../chat/conversation";
import type { Conversation } from "../chat/sending";
import { randomName } from "../names";
import { navigate } from "../router";
import { age, Button, Confirm, firstLine, Link, PageHead, ProblemBanner, useLoad, useNow } from "../ui";

interface Conversations {
  conversations: Conversation[];
  next_page_token: string;
}

// The name that the next new chat will have; the address gets it with the first message.
const next = signal(randomName("web"));

/** Chats: those there are, and one of them. */
export function ChatView({ session = "" }: { session?: string }) {
  const list = useLoad<Conversations>((abort) => get("/api/conversations", { page_size: 50 }, abort), "chats");
  const [leaving, setLeaving] = useState<Conversation>();
  const now = useNow(30_000);
  const here = session || next.value;

  function begin(): void {
    next.value = randomName("web");
    navigate("/chat");
  }

  return (
    <>
      <PageHead title="Chat">
        <Button onClick={begin}>New chat</Button>
      </PageHead>
      <div class="chat-layout">
        <ConversationView key={here} session={here} fresh={!session} onAnswered={list.reload} />
        <nav class="chat-list" aria-label="Chats">
          <h2 class="chat-list-head">Chats</h2>
          <ProblemBanner problem={list.problem} retry={list.reload} />
          {list.value && list.value.conversations.length === 0 && <p class="muted small">None yet.</p>}
          <ul class="list-plain">
            {list.value?.conversations.map((one) => (
              <li key={one.session_id} class="chat-entry">
                <Link href={`/chat/${encodeURIComponent(one.session_id)}`} aria-current={one.session_id === session ? "page" : undefined}>
                  <span class="chat-entry-text">{firstLine(one.last_text, 70) || one.session_id}</span>
                  <span class="muted small">
                    {one.turn_count} turn{one.turn_count === 1 ? "" : "s"}, {age(one.updated_at_ms, now)}
                  </span>
                </Link>
                <Button small kind="quiet" label={`Forget the chat ${firstLine(one.last_text, 40)}`} onClick={() => setLeaving(one)}>
                  <span aria-hidden="true">✕</span>
                </Button>
              </li>
            ))}
          </ul>
        </nav>
      </div>
      {leaving && (
        <Confirm
          title="Forget this chat?"
          yes="Forget it"
          onClose={() => setLeaving(undefined)}
          onYes={async () => {
            await remove(`/api/conversations/${encodeURIComponent(leaving.session_id)}`);
            list.reload();
            if (leaving.session_id === session) begin();
          }}
        >
          <p class="prose-text">{firstLine(leaving.last_text, 200)}</p>
          <p class="muted">Its turns are deleted. What it keeps in long-term memory stays.</p>
        </Confirm>
      )}
    </>
  );
}
