import { PageHead } from "../ui";

export function CouncilsView() {
  return <PageHead title="Councils" />;
}
