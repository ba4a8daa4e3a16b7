/** What code that may not block has to wait for; whoever runs it does so, blocking or not. */
export type Wait =
  /** Take a lock within so many ms: kind and mode as lib/native.ts names them, of the whole file. */
  | { kind: 'lock'; descriptor: number; lock: number; mode: number; milliseconds: number }
  | { kind: 'sleep'; milliseconds: number };

/** A computation that yields what it waits for; `yield*` its parts. */
export type Waiting<Result> = Generator<Wait, Result, unknown>;

/** false: somebody else held it all the time. */
export function* locking(
  descriptor: number,
  lock: number,
  mode: number,
  milliseconds: number,
): Waiting<boolean> {
  return (yield { kind: 'lock', descriptor, lock, mode, milliseconds }) as boolean;
}

export function* sleeping(milliseconds: number): Waiting<void> {
  yield { kind: 'sleep', milliseconds };
}
