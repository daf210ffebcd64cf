import type { FileUIPart } from "ai";

/** A file of a message: a picture is shown, anything else is a link. */
export function Picture({ part }: { part: FileUIPart }) {
  const name = part.filename ?? "file";
  if (!part.mediaType.startsWith("image/")) return <a href={part.url} download={part.filename}>{name}</a>;
  return <img style={{ display: "block", maxWidth: "100%", maxHeight: "20rem" }} src={part.url} alt={name} />;
}
