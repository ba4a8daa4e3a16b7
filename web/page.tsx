// The page: who asks for the token, follows the stream, and shows the last line of it.
import { render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import type { UsageAnswer } from '../lib/views/web/shapes.ts';
import { followStream, type News, storeToken, takeToken, tokenIn, useAnswer } from './connection.ts';
import { historyIntervalMs } from './history.tsx';
import { LogDialog, type OpenLog } from './log.tsx';
import { Machines, summaryOf } from './machine.tsx';

/** How long an answer about the last 30 days is good for. */
const usageIntervalMs = () => 5 * 60_000;

function Page() {
  const [token, setToken] = useState(takeToken);
  /** Counts tokens that were given, also if one is given again. */
  const [attempt, setAttempt] = useState(0);
  const [isRefused, setRefused] = useState(false);
  const [line, setLine] = useState<Extract<News, { kind: 'line' }>['line'] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [filter, setFilter] = useState('');
  const [log, setLog] = useState<OpenLog | null>(null);
  const isSeen = useVisibility();
  const isLocal = line?.machines[0]?.isLocal === true;
  const history = useAnswer('api/v1/history', isSeen ? token : null, historyIntervalMs);
  const usage = useAnswer<UsageAnswer>('api/v1/usage', isSeen && isLocal ? token : null, usageIntervalMs);
  const machines = line?.machines ?? [];

  useEffect(() => {
    const take = () => {
      if (tokenIn(location.hash) === null) return;
      setToken(takeToken());
      setAttempt((before) => before + 1);
    };
    addEventListener('hashchange', take);
    return () => removeEventListener('hashchange', take);
  }, []);

  useEffect(() => {
    // A hidden page doesn't keep the driver busy.
    if (token === null || !isSeen) return;
    const end = new AbortController();
    setRefused(false);
    void followStream(token, end.signal, (news) => {
      setRefused(news.kind === 'wrong-token');
      setProblem(news.kind === 'lost' ? news.reason : null);
      if (news.kind === 'line') setLine(news.line);
      if (news.kind === 'wrong-token') setLine(null);
    });
    return () => end.abort();
  }, [token, isSeen, attempt]);

  const host = machines.length > 1 ? `${machines.length} machines` : (machines[0]?.host ?? null);
  const summary = line === null ? '' : summaryOf(line.machines);
  useEffect(() => {
    document.title = [summary, host ?? 'gpu-owner'].filter(Boolean).join(' – ');
  }, [summary, host]);

  if (token === null || isRefused) {
    return (
      <TokenForm
        isRefused={isRefused}
        onToken={(text) => {
          storeToken(text);
          setRefused(false);
          setToken(text);
          setAttempt((before) => before + 1);
        }}
      />
    );
  }
  // One of several tells its problem where it stands.
  const stale = problem ?? (machines.length === 1 ? (machines[0]?.problem ?? null) : null);
  return (
    <>
      <header>
        <h1>{host ?? 'gpu-owner'}</h1>
        <p class="summary" role="status">
          {summary}
        </p>
        <p class={stale === null ? 'connection' : 'connection bad'} role="status">
          {connectionText(line !== null, summary !== '', problem, stale)}
        </p>
        {line !== null && (
          <time class="connection" dateTime={line.time}>
            {new Date(line.time).toTimeString().slice(0, 8)}
          </time>
        )}
        <search>
          <label>
            Show only{' '}
            <input
              type="search"
              placeholder="user, job, GPU"
              value={filter}
              onInput={(event) => setFilter(event.currentTarget.value)}
              onKeyDown={(event) => {
                if (event.key === 'Escape') setFilter('');
              }}
            />
          </label>
        </search>
      </header>
      <main class={stale === null ? '' : 'stale'}>
        {line !== null && (
          <Machines
            machines={machines}
            history={history}
            usage={usage}
            user={line.user}
            filter={filter}
            now={Date.parse(line.time)}
            onLog={setLog}
          />
        )}
      </main>
      {log !== null && (
        <LogDialog {...log} token={token} isSeen={isSeen} lost={problem} onClose={() => setLog(null)} />
      )}
    </>
  );
}

function connectionText(
  hasLine: boolean,
  hasSnapshot: boolean,
  lost: string | null,
  stale: string | null,
): string {
  const before = hasSnapshot ? ' Showing the last snapshot.' : '';
  if (lost !== null) return `No connection to the server (${lost}). Trying again.${before}`;
  if (stale !== null) return `${stale}.${before}`;
  return hasLine ? 'live' : 'connecting';
}

function TokenForm({ isRefused, onToken }: { isRefused: boolean; onToken: (token: string) => void }) {
  const [text, setText] = useState('');
  const [isURL, setIsURL] = useState(false);
  const refusal = isURL
    ? 'This URL has no token.'
    : isRefused
      ? 'The server refuses the token. Without --token-file, each start makes a new one.'
      : '';
  return (
    <main class="token">
      <h1>gpu-owner</h1>
      <p role="alert">{refusal}</p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          const token = (tokenIn(text) ?? text).trim();
          setIsURL(/^https?:/.test(token));
          if (token !== '' && !/^https?:/.test(token)) onToken(token);
        }}
      >
        <label>
          <span>
            Paste the URL that <code>gpu-owner web</code> printed, or the token in its{' '}
            <code>--token-file</code>.
          </span>
          <input
            type="password"
            autoComplete="off"
            required
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
        <button type="submit">Sign in</button>
      </form>
    </main>
  );
}

function useVisibility(): boolean {
  const [isSeen, setSeen] = useState(!document.hidden);
  useEffect(() => {
    const look = () => setSeen(!document.hidden);
    document.addEventListener('visibilitychange', look);
    return () => document.removeEventListener('visibilitychange', look);
  }, []);
  return isSeen;
}

render(<Page />, document.getElementById('page') as HTMLElement);
