import { PageHead } from "../ui";

export function FleetView() {
  return <PageHead title="Fleet" />;
}
