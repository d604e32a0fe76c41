import { PageHead } from "../ui";

export function ConnectView() {
  return <PageHead title="Connect" />;
}
