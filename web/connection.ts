// The stream of states from the server, and the token that it wants.
import { useEffect, useState } from 'preact/hooks';
import type { StreamLine } from '../lib/views/web/shapes.ts';

/** News of the connection. */
export type News =
  | { kind: 'line'; line: StreamLine }
  /** The connection is lost; it is tried again, without end. */
  | { kind: 'lost'; reason: string }
  | { kind: 'wrong-token' };

const TOKEN_KEY = 'gpu-owner-token';
const MIN_PAUSE_MS = 500;
const MAX_PAUSE_MS = 10_000;
/** How long the server may take to answer, and how much later than promised a line may be. */
const MAX_LATENESS_MS = 15_000;
/** After an answer that failed. */
const RETRY_MS = 60_000;
const MAX_LINE_LENGTH = 32 * 1024 ** 2;
/** As much as the server sends at first, TAIL_BYTES in lib/views/job-log.ts. */
const MAX_LOG_LENGTH = 256 * 1024;

/** Moves the token from the address, where others could read it on the screen, into the storage of this tab. */
export function takeToken(): string | null {
  const given = tokenIn(location.hash);
  if (given !== null) {
    sessionStorage.setItem(TOKEN_KEY, given);
    history.replaceState(null, '', location.pathname + location.search);
  }
  return sessionStorage.getItem(TOKEN_KEY);
}

export function storeToken(token: string): void {
  sessionStorage.setItem(TOKEN_KEY, token);
}

/** The token in a URL that `gpu-owner web` has printed; null: there is none. */
export function tokenIn(url: string): string | null {
  return /#token=([^&#]+)/.exec(url)?.[1] ?? null;
}

/** Follows the stream until it is aborted, or the token is refused. */
export async function followStream(
  token: string,
  signal: AbortSignal,
  tell: (news: News) => void,
): Promise<void> {
  const onLost = (reason: string) => tell({ kind: 'lost', reason });
  const isRefused = await follow('api/v1/stream', token, signal, onLost, async (body, expect) => {
    await readLines(body, (line) => {
      expect(MAX_LATENESS_MS + 2_000 * line.intervalSeconds);
      tell({ kind: 'line', line });
    });
    throw new Error('the server has closed the connection');
  });
  if (isRefused) tell({ kind: 'wrong-token' });
}

/** The end of a log, and what is to be said of it. */
export interface Log {
  text: string;
  isOver: boolean;
  problem: string | null;
}

/** Follows a job's log until its end. @param address as the API takes it @param isOnline whether it makes sense to ask */
export function useLog(address: string, token: string, isOnline: boolean): Log {
  const [log, setLog] = useState<Log>({ text: '', isOver: false, problem: null });
  useEffect(() => {
    if (!isOnline) return;
    const end = new AbortController();
    const onLost = (problem: string) => setLog((before) => ({ ...before, problem }));
    const read = async (body: ReadableStream<Uint8Array>, expect: (ms: null) => void) => {
      expect(null);
      setLog((before) => ({ ...before, problem: null }));
      const decoder = new TextDecoder();
      let text = '';
      for (const reader = body.getReader(); ; ) {
        const { done, value } = await reader.read();
        text = (text + decoder.decode(value, { stream: true })).slice(-MAX_LOG_LENGTH);
        setLog({ text, isOver: done, problem: null });
        if (done) return;
      }
    };
    // A login on a host takes a while.
    void follow(
      `api/v1/jobs/${encodeURIComponent(address)}/log?follow=true`,
      token,
      end.signal,
      onLost,
      read,
      2 * MAX_LATENESS_MS,
    );
    return () => end.abort();
  }, [address, token, isOnline]);
  return log;
}

/**
 * Reads a streamed answer, and reconnects when the connection is lost.
 * @param read reads to the end; throws an error if it isn't a good one. `expect` gets the ms until the next piece; null: any time
 * @returns whether the token was refused; otherwise it is aborted, or read to the end
 */
async function follow(
  path: string,
  token: string,
  signal: AbortSignal,
  onLost: (reason: string) => void,
  read: (body: ReadableStream<Uint8Array>, expect: (ms: number | null) => void) => Promise<void>,
  patienceMs = MAX_LATENESS_MS,
): Promise<boolean> {
  let failures = 0;
  while (!signal.aborted) {
    const attempt = new AbortController();
    const abort = () => attempt.abort();
    signal.addEventListener('abort', abort);
    const silent = () => attempt.abort(new Error('the server sends nothing'));
    let timer = setTimeout(silent, patienceMs);
    try {
      const headers = { authorization: `Bearer ${token}` };
      const response = await fetch(path, { headers, cache: 'no-store', signal: attempt.signal });
      if (response.status === 401) return true;
      if (!response.ok || response.body === null) throw new Error(await reasonOf(response));
      await read(response.body, (ms) => {
        clearTimeout(timer);
        if (ms !== null) timer = setTimeout(silent, ms);
        failures = 0;
      });
      return false;
    } catch (error) {
      if (signal.aborted) return false;
      onLost(error instanceof Error ? error.message : String(error));
    } finally {
      clearTimeout(timer);
      attempt.abort();
      signal.removeEventListener('abort', abort);
    }
    await sleep(Math.min(MIN_PAUSE_MS * 2 ** failures++, MAX_PAUSE_MS), signal);
  }
  return false;
}

/**
 * Asks the API again and again. null: there is no answer yet
 * @param token null: nothing is asked @param intervalOf how long an answer is good for, in ms; must not change
 */
export function useAnswer<Answer>(
  path: string,
  token: string | null,
  intervalOf: (answer: Answer) => number,
): Answer | null {
  const [last, setLast] = useState<Answer | null>(null);
  useEffect(() => {
    if (token === null) return;
    const end = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const ask = async (): Promise<number> => {
      const headers = { authorization: `Bearer ${token}` };
      const response = await fetch(path, { headers, cache: 'no-store', signal: end.signal });
      if (!response.ok) return RETRY_MS;
      const answer = (await response.json()) as Answer;
      setLast(answer);
      return intervalOf(answer);
    };
    const repeat = async () => {
      // Where there is no connection, the stream says so.
      const intervalMs = await ask().catch(() => RETRY_MS);
      if (!end.signal.aborted) timer = setTimeout(repeat, intervalMs);
    };
    void repeat();
    return () => {
      clearTimeout(timer);
      end.abort();
    };
  }, [path, token, intervalOf]);
  return last;
}

async function reasonOf(response: Response): Promise<string> {
  const { error } = (await response.json().catch(() => ({}))) as { error?: { message?: string } };
  return error?.message ?? `the server answers ${response.status}`;
}

/** Reads lines of JSON to the end. If several come together, the last one counts. */
async function readLines(
  body: ReadableStream<Uint8Array>,
  onLine: (line: StreamLine) => void,
): Promise<void> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  for (let text = ''; ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    if (text.length > MAX_LINE_LENGTH) throw new Error('the server sends too much');
    const lines = text.split('\n');
    text = lines.pop() ?? '';
    const last = lines.at(-1);
    if (last !== undefined) onLine(JSON.parse(last) as StreamLine);
  }
}

function sleep(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
