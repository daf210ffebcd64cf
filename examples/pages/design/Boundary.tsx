import { Component, type ReactNode } from "react";
import { Alert } from "./Page";

/** An error boundary: shows the error of a component that failed, and a button to reload the page. */
export class Boundary extends Component<{ children: ReactNode }, { error?: Error }> {
  state: { error?: Error } = {};

  static getDerivedStateFromError = (error: Error) => ({ error });

  render() {
    if (!this.state.error) return this.props.children;
    return <div className="opening"><Alert text={this.state.error.message || "Cannot show this part of the page."} action="Reload" onAction={() => location.reload()} /></div>;
  }
}
