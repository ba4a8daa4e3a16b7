/** What code that may not block has to wait for; whoever runs it does so, blocking or not. */
export type Wait =
  /** Take an OFD lock on a byte within so many ms; the mode as lib/native.ts names it. */
  | { kind: 'lock'; descriptor: number; mode: number; byte: number; milliseconds: number }
  | { kind: 'sleep'; milliseconds: number };

/** A computation that yields what it waits for; `yield*` its parts. */
export type Waiting<Result> = Generator<Wait, Result, unknown>;

/** false: somebody else held it all the time. */
export function* locking(
  descriptor: number,
  mode: number,
  byte: number,
  milliseconds: number,
): Waiting<boolean> {
  return (yield { kind: 'lock', descriptor, mode, byte, milliseconds }) as boolean;
}

export function* sleeping(milliseconds: number): Waiting<void> {
  yield { kind: 'sleep', milliseconds };
}
