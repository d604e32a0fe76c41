import { PageHead } from "../ui";

export function MemoryView() {
  return <PageHead title="Memory" />;
}
