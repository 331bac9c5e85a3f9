// How numbers read.

export const fixed = (x: number, digits = 2): string => Math.abs(x).toFixed(digits);
export const plain = (x: number, digits = 2): string =>
  (x < 0 && Number(fixed(x, digits)) !== 0 ? "−" : "") + fixed(x, digits);
export const signed = (x: number, digits = 2): string =>
  (Number(fixed(x, digits)) === 0 ? "" : x < 0 ? "−" : "+") + fixed(x, digits);
export const count = (n: number): string => Math.round(n).toLocaleString("en-US");

export function percent(p: number): string {
  if (p === 0) return "0 %";
  const value = 100 * p;
  if (value < 0.001) return "<0.001 %";
  return `${value >= 10 ? value.toFixed(1) : value >= 0.1 ? value.toFixed(2) : value.toPrecision(2)} %`;
}

/** About three digits, whatever the size. */
export function compact(x: number | null, isSigned = false): string {
  if (x === null || Number.isNaN(x)) return "–";
  const size = Math.abs(x);
  if (size !== 0 && (size < 0.0005 || size >= 1e5)) return x.toExponential(1).replace(/-/g, "−");
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return isSigned ? signed(x, digits) : plain(x, digits);
}

/** Two digits beside numbers as large as `limit`, three from one on: what is nothing beside them reads as nothing. */
export function beside(x: number, limit: number, isSigned = false): string {
  if (limit >= 1e5 || limit < 1e-3) return compact(x, isSigned);
  const digits = Math.max(0, Math.min(5, (limit < 1 ? 1 : 2) - Math.floor(Math.log10(limit) + 1e-6)));
  if (Number(fixed(x, digits)) === 0) return "0";
  return isSigned ? signed(x, digits) : plain(x, digits);
}

/** A number beside a tick. */
export function short(x: number): string {
  const size = Math.abs(x);
  if (size >= 1e9) return `${Number((x / 1e9).toPrecision(3))}G`;
  if (size >= 1e6) return `${Number((x / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((x / 1e3).toPrecision(3))}k`;
  return String(Number(x.toPrecision(3))).replace("-", "−");
}
