export { ExecutionPage } from "./page";
