import "./design.css";

export * from "./Boundary";
export * from "./Confirm";
export * from "./Conversation";
export * from "./Drawer";
export * from "./icons";
export * from "./messages";
export * from "./Page";
export * from "./Picture";
export * from "./RunPanel";
export * from "./Text";
export { ToolCard, type ToolState } from "./ToolCard";
export * from "./ToolLine";
export * from "./turn";
