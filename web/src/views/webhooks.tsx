import { PageHead } from "../ui";

export function WebhooksView() {
  return <PageHead title="Webhooks" />;
}
