import { PageHead } from "../ui";

export function StoriesView({ story = "" }: { story?: string }) {
  return <PageHead title="Stories" lead={story} />;
}
