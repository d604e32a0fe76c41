// Blobs that an execution stored.
import { send } from "../api";

/** Of a blob that is shown as text; the rest can be downloaded. */
export const SHOWN_BYTES = 2 * 1024 * 1024;

export function artifactPath(executionId: string, digest: string): string {
  return `/api/executions/${encodeURIComponent(executionId)}/artifacts/${encodeURIComponent(digest)}`;
}

/** A name that a download can have: letters of names are others' choice, where a file goes and what it is are not. */
export function fileName(name: string): string {
  return name.replace(/[^\p{L}\p{N}._-]+/gu, "_").replace(/^[._]+/, "").slice(-150) || "download";
}

/** A blob as text, at most so much of it. Raises Problem. */
export async function artifactText(
  executionId: string,
  digest: string,
  signal?: AbortSignal,
): Promise<{ text: string; whole: boolean }> {
  const response = await send("GET", artifactPath(executionId, digest), { accept: "*/*", ...(signal && { signal }) });
  if (!response.body) return { text: "", whole: true };
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let read = 0;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return { text: text + decoder.decode(), whole: true };
    read += value.byteLength;
    if (read > SHOWN_BYTES) {
      text += decoder.decode(value.subarray(0, Math.max(0, value.byteLength - (read - SHOWN_BYTES))));
      await reader.cancel();
      return { text, whole: false };
    }
    text += decoder.decode(value, { stream: true });
  }
}
