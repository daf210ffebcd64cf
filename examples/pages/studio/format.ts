// Numbers, times and sizes as short texts.

const DAY = 86400;

export function duration(seconds: number): string {
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 0.0005) return "0 ms";
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(seconds < 9.95 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  const [days, hours, minutes, rest] = [Math.floor(whole / DAY), Math.floor((whole % DAY) / 3600), Math.floor((whole % 3600) / 60), whole % 60];
  if (days) return hours ? `${days} d ${hours} h` : `${days} d`;
  if (hours) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  return rest ? `${minutes} min ${rest} s` : `${minutes} min`;
}

/** A distance in time without false precision: "in 5 min", "3 h ago". */
export function relative(time: number, now: number): string {
  const seconds = Math.abs(time - now);
  const text = seconds < 1 ? "now" : seconds < 60 ? `${Math.floor(seconds)} s` : seconds < 3600 ? `${Math.floor(seconds / 60)} min` : seconds < 2 * DAY ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / DAY)} d`;
  if (text === "now") return text;
  return time > now ? `in ${text}` : `${text} ago`;
}

export function bytes(size: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  for (; size >= 1000 && at < units.length - 1; at++) size /= 1000;
  return `${at && size < 10 ? size.toFixed(1) : Math.round(size)} ${units[at]}`;
}

export const count = (number: number) => number.toLocaleString("en-US");
export const plural = (number: number, one: string, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export function dollars(nano: number): string {
  const value = nano / 1e9;
  if (value === 0) return "$0";
  if (value < 0.01) return `$${value.toFixed(6).replace(/0+$/, "").replace(/\.$/, "")}`;
  return `$${value.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: value < 1 ? 4 : 2 })}`;
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const SHORT = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

export const clock = (time: number) => CLOCK.format(time * 1000);
export const fullTime = (time: number) => FULL.format(time * 1000);
/** The time of day, with the date unless it is today's. */
export const shortTime = (time: number) => (new Date(time * 1000).toDateString() === new Date().toDateString() ? CLOCK : SHORT).format(time * 1000);

/** The name of the last agent of an address, and what is above it. */
export function segments(address: string): { type: string; name: string; address: string }[] {
  const parts = address.split("/");
  return parts.map((part, at) => {
    const colon = part.indexOf(":");
    return { type: part.slice(0, colon), name: decode(part.slice(colon + 1)), address: parts.slice(0, at + 1).join("/") };
  });
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
