import { Component, type ReactNode } from "react";
import { Alert } from "./Page";

/** What is shown instead of a part of the page that failed, and a way to begin it anew. */
export class Boundary extends Component<{ children: ReactNode }, { error?: Error }> {
  state: { error?: Error } = {};

  static getDerivedStateFromError = (error: Error) => ({ error });

  render() {
    if (!this.state.error) return this.props.children;
    return <div className="opening"><Alert text={this.state.error.message || "This cannot be shown."} action="Reload" onAction={() => location.reload()} /></div>;
  }
}
