import "./design.css";

export * from "./Conversation";
export * from "./icons";
export * from "./Page";
export * from "./Text";
export * from "./ToolCard";
