export { WorkflowsPage } from "./page";
